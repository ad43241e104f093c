//! Lists of jobs by state. To the backend every held job is active; here it stands among those that wait,
//! behind the backend's own, and pages and totals are those of the list that is shown. Of held jobs that the caller
//! is not told of the backend's word stands.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use http::request::Parts;

use crate::hold::{Tally, View};
use crate::json::{Json, Splice};
use crate::ojs;
use crate::proxy::scope::Sight;
use crate::proxy::{Proxy, REPLY_DEPTH, Sidecar, mirror};
use crate::upstream::Path;

/// Jobs on a page where the backend does not say.
const PER_PAGE: usize = 20;
/// Jobs on one page that we ask for, and the most pages.
const PAGE: usize = 100;
const PAGES: usize = 100;

/// What a list is asked for.
#[derive(Default)]
pub(super) struct Query<'a> {
    query: &'a str,
    pub(super) state: Option<Cow<'a, str>>,
    queue: Option<Cow<'a, str>>,
    kind: Option<Cow<'a, str>>,
    page: Option<usize>,
    per_page: Option<usize>,
}

/// What the backend says of the page that it gives.
struct Page {
    /// Jobs on all pages.
    total: Option<usize>,
    /// The most on one.
    most: usize,
    /// Those before this page.
    before: usize,
}

impl<'a> Query<'a> {
    pub(super) fn of(query: &'a str) -> Query<'a> {
        let mut asked = Query {
            query,
            ..Query::default()
        };
        for (name, value) in ojs::parameters(query).filter(|(_, value)| !value.is_empty()) {
            match &*name {
                "state" => asked.state = Some(value),
                "queue" => asked.queue = Some(value),
                "type" => asked.kind = Some(value),
                "page" => asked.page = value.parse().ok(),
                "per_page" => asked.per_page = value.parse().ok(),
                _ => {}
            }
        }
        asked
    }

    /// The same query for another page.
    fn query_of(&self, page: usize) -> String {
        let is_page = |pair: &&str| {
            let name = pair.split('=').next().and_then(ojs::decoded);
            matches!(name.as_deref(), Some("page" | "per_page"))
        };
        let others = self.query.split('&').filter(|pair| !is_page(pair));
        let others: Vec<&str> = others.collect();
        format!("{}&page={page}&per_page={PAGE}", others.join("&"))
    }

    fn page_of(&self, whole: Json<'_>) -> Page {
        let said = |name: &str| {
            let number = whole.get_exact("pagination")?.get_exact(name)?.int()?;
            usize::try_from(number).ok()
        };
        let most = said("per_page").or(self.per_page).unwrap_or(PER_PAGE);
        let earlier = self.page.unwrap_or(1).max(1) - 1;
        Page {
            total: said("total"),
            most: most.max(1),
            before: earlier.saturating_mul(most.max(1)),
        }
    }

    /// Whether a job's type is the one that is asked for.
    fn is_of_kind(&self, view: &View) -> bool {
        let Some(kind) = &self.kind else {
            return true;
        };
        let job = Json::parse(&view.body, REPLY_DEPTH).ok();
        let is = job.and_then(|job| job.text_of("type"));
        is.as_deref() == Some(&**kind)
    }
}

impl Proxy {
    /// A list of active jobs without those that are held. The others move up, so where there are more than one
    /// page, those before it are read too.
    pub(super) async fn without_held(
        &self,
        parts: &Parts,
        text: &[u8],
        asked: &Query<'_>,
        sight: &Sight,
    ) -> Option<Vec<u8>> {
        let held = self.held_of(asked, sight);
        let page = asked.page_of(Json::parse(text, REPLY_DEPTH).ok()?);
        let moved = match page.total {
            Some(total) if held > 0 && total > page.most => {
                self.moved_up(parts, asked, sight, &page, total).await
            }
            _ => None,
        };
        let whole = Json::parse(text, REPLY_DEPTH).ok()?;
        let items = whole.get_exact("items")?;
        let kept = moved.unwrap_or_else(|| self.not_held(items, sight).collect());
        let mut splice = Splice::new();
        splice.replace(items.range(), list(&kept));
        let held = i64::try_from(held).unwrap_or(i64::MAX);
        add_to_total(whole, -held, &mut splice);
        Some(splice.apply(text))
    }

    /// The page of active jobs that it would be without those that are held; `None`: the backend did not give
    /// what that needs.
    async fn moved_up(
        &self,
        parts: &Parts,
        asked: &Query<'_>,
        sight: &Sight,
        page: &Page,
        total: usize,
    ) -> Option<Vec<Bytes>> {
        let mut kept: Vec<Bytes> = Vec::new();
        let (mut seen, end) = (0, page.before.saturating_add(page.most));
        for nth in 1..=PAGES {
            if seen >= total || kept.len() >= end {
                break;
            }
            let mut call = self.plain_call(parts, Bytes::new());
            let query = asked.query_of(nth);
            call.target = Path::Text(format!("{}?{query}", parts.uri.path()));
            let reply = crate::proxy::call(self, "list_active", call).await.ok()?;
            if reply.status != StatusCode::OK {
                return None;
            }
            let whole = Json::parse(&reply.body, REPLY_DEPTH).ok()?;
            let items = whole.get_exact("items")?;
            let here = items.items().count();
            // Some have ended since they were counted.
            seen = if here == 0 { total } else { seen + here };
            kept.extend(self.not_held(items, sight));
        }
        let is_whole = seen >= total || kept.len() >= end;
        let on_page = kept.into_iter().skip(page.before).take(page.most);
        is_whole.then(|| on_page.collect())
    }

    /// Jobs of a list that are not held, mirrors hidden.
    fn not_held<'a>(&self, items: Json<'a>, sight: &Sight) -> impl Iterator<Item = Bytes> {
        let is_held = |job: &Json<'a>| {
            let id = job.text_of("id");
            let scope = id.and_then(|id| self.sidecar.hold.scope_of(&id));
            scope.is_some_and(|scope| sight.sees(scope))
        };
        let others = items.items().filter(move |job| !is_held(job));
        others.map(mirror::shown)
    }

    /// How many held jobs would be in a list.
    fn held_of(&self, asked: &Query<'_>, sight: &Sight) -> usize {
        if asked.kind.is_some() {
            let views = self.sidecar.views(asked.queue.as_deref(), sight);
            return views.iter().filter(|view| asked.is_of_kind(view)).count();
        }
        let tallies = self.sidecar.tallies(sight);
        match &asked.queue {
            Some(queue) => tallies.get(&**queue).map_or(0, |tally| tally.held),
            None => tallies.values().map(|tally| tally.held).sum(),
        }
    }

    /// A list of available or scheduled jobs with those that are held, behind the last of the backend's.
    pub(super) fn with_held(
        &self,
        text: &[u8],
        asked: &Query<'_>,
        sight: &Sight,
    ) -> Option<Vec<u8>> {
        let whole = Json::parse(text, REPLY_DEPTH).ok()?;
        let items = whole.get_exact("items")?;
        let page = asked.page_of(whole);
        let mut shown: Vec<Bytes> = items.items().map(mirror::shown).collect();
        let later = asked.state.as_deref() == Some("scheduled");
        let mut held = self.sidecar.views(asked.queue.as_deref(), sight);
        held.retain(|view| view.scheduled_at.is_some() == later && asked.is_of_kind(view));
        let room = page.most.saturating_sub(shown.len());
        let earlier = page.before.saturating_sub(page.total.unwrap_or(0));
        for view in held.iter().skip(earlier).take(room) {
            let Ok(job) = Json::parse(&view.body, REPLY_DEPTH) else {
                continue;
            };
            let mut splice = Splice::new();
            self.relabel(job, view.attempt, view.scheduled_at, &mut splice);
            shown.push(splice.apply(&view.body).into());
        }
        let mut splice = Splice::new();
        splice.replace(items.range(), list(&shown));
        let added = i64::try_from(held.len()).unwrap_or(i64::MAX);
        add_to_total(whole, added, &mut splice);
        Some(splice.apply(text))
    }
}

impl Sidecar {
    /// How many held jobs of each queue a caller is told of.
    pub(super) fn tallies(&self, sight: &Sight) -> HashMap<Arc<str>, Tally> {
        let sees = |scope| sight.sees(scope);
        self.hold.tallies(self.store.now(), sees)
    }

    /// The held jobs of a queue, or of all, that a caller is told of.
    fn views(&self, queue: Option<&str>, sight: &Sight) -> Vec<View> {
        let sees = |scope| sight.sees(scope);
        self.hold.views(queue, self.store.now(), sees)
    }
}

fn list(items: &[Bytes]) -> Vec<u8> {
    let parts: Vec<&[u8]> = items.iter().map(|item| item.as_ref()).collect();
    [b"[".as_slice(), &parts.join(&b","[..]), b"]"].concat()
}

fn add_to_total(whole: Json<'_>, change: i64, splice: &mut Splice) {
    let total = whole
        .get_exact("pagination")
        .and_then(|pages| pages.get_exact("total"));
    if let Some((total, now)) = total.and_then(|total| Some((total, total.int()?))) {
        splice.replace(total.range(), now.saturating_add(change).max(0).to_string());
    }
}

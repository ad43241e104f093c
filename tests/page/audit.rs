//! What everyone needs to read and to work a page: contrast, names, width, and the keyboard.

use std::collections::BTreeSet;

use serde_json::json;

use super::browser::{Browser, TAB};

/// Texts whose colour is too near to that behind them, as the styles come out: each as text and ratio. The last one
/// says how many texts there are.
const CONTRAST: &str = r#"
const pen = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
const parts = colour => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
};
const over = (front, back) => front.slice(0, 3).map((part, n) => part * front[3] + back[n] * (1 - front[3]));
const behind = element => {
    if (!element) return parts(getComputedStyle(document.documentElement).colorScheme.includes('dark')
        && matchMedia('(prefers-color-scheme: dark)').matches ? '#121212' : '#ffffff').slice(0, 3);
    const style = getComputedStyle(element);
    if (style.backgroundImage != 'none') throw new Error('a picture behind ' + element.outerHTML.slice(0, 200));
    return over(parts(style.backgroundColor), behind(element.parentElement));
};
const light = colour => {
    const [r, g, b] = colour.map(part => part / 255).map(part =>
        part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (element, style) => {
    const back = behind(element), front = parts(element.closest('svg') ? style.fill : style.color);
    for (let at = element; at; at = at.parentElement) front[3] *= getComputedStyle(at).opacity;
    const [low, high] = [light(over(front, back)), light(back)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
};
const texts = [], seen = {visibilityProperty: true, opacityProperty: false};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || element.matches('script, style, option') || !element.checkVisibility(seen)) continue;
    texts.push([text, ratio(element, getComputedStyle(element))]);
}
for (const field of document.querySelectorAll('input, select, textarea')) {
    if (!field.checkVisibility(seen)) continue;
    texts.push([field.outerHTML.slice(0, 100), ratio(field, getComputedStyle(field))]);
    if (field.placeholder) texts.push([field.placeholder, ratio(field, getComputedStyle(field, '::placeholder'))]);
}
return [...texts.filter(([, ratio]) => ratio < 4.5), texts.length];
"#;

/// Tables without headers: each column has one with a text.
const TABLES: &str = "return [...document.querySelectorAll('table')].filter(table => {
    const heads = [...table.querySelectorAll('thead th')];
    return !heads.length || heads.some(head => !head.textContent.trim());
}).map(table => table.outerHTML.slice(0, 300))";

/// Everything that can be worked and is not off, numbered.
const CONTROLS: &str = "let nth = 0;
for (const control of document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex], [onclick]'))
    if (control.checkVisibility({visibilityProperty: true}) && !control.matches(':disabled, [tabindex=\"-1\"]'))
        control.dataset.nth = ++nth;
return nth";

/// All texts of what is shown stand out from what is behind them.
pub fn contrast(browser: &Browser, what: &str) {
    let found = browser.script(CONTRAST);
    let (count, low) = found.as_array().unwrap().split_last().unwrap();
    assert!(count.as_u64() > Some(10), "{what}: {count} texts");
    assert!(low.is_empty(), "{what}: {low:?}");
}

/// All that can have the focus has a name for who does not see it, and tables have headers.
pub fn names(browser: &Browser, what: &str) {
    let tree = browser.devtools("Accessibility.getFullAXTree", json!({}));
    let mut named = 0;
    for node in tree["nodes"].as_array().unwrap() {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let mut properties = node["properties"].as_array().into_iter().flatten();
        let can_have =
            properties.any(|of| of["name"] == "focusable" && of["value"]["value"] == true);
        if node["ignored"] == false && can_have && !["RootWebArea", "main"].contains(&role) {
            let name = node["name"]["value"].as_str().unwrap_or_default();
            assert!(!name.trim().is_empty(), "{what}: {node}");
            named += 1;
        }
    }
    assert!(named > 3, "{what}: {named} controls");
    assert_eq!(browser.script(TABLES), json!([]), "{what}");
}

/// Tab comes to everything.
pub fn reachable(browser: &Browser, what: &str) {
    let all = browser.script(CONTROLS).as_u64().unwrap();
    assert!(all > 3, "{what}: {all} controls");
    let mut seen = BTreeSet::new();
    // Beyond the last one comes the body.
    for _ in 0..=all {
        browser.keys(TAB);
        let nth = browser.script("return Number(document.activeElement.dataset.nth || 0)");
        seen.insert(nth.as_u64().unwrap());
    }
    seen.remove(&0);
    let missed = (1..=all).find(|nth| !seen.contains(nth));
    let missed = missed.map(|nth| {
        browser.script(&format!(
            "return document.querySelector('[data-nth=\"{nth}\"]')?.outerHTML"
        ))
    });
    assert_eq!(missed, None, "{what}: {seen:?} of {all}");
}

/// On a phone nothing is beyond the right edge.
pub fn narrow(browser: &Browser, what: &str) {
    browser.width(360);
    let wide = browser.script(
        "const edge = document.documentElement.clientWidth;
        return document.documentElement.scrollWidth <= edge && edge <= innerWidth ? [] :
            [...document.querySelectorAll('body *')].filter(one => one.getBoundingClientRect().right > edge)
                .map(one => one.outerHTML.slice(0, 200));",
    );
    assert_eq!(wide, json!([]), "{what}");
    browser.width(1280);
}

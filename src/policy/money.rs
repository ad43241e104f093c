//! Amounts of money, such as `"800 USD"`. They are counted in whole units, each of which is a fraction of a currency.

use std::sync::Arc;

use super::numbers::LARGEST_NUMBER;

/// The unit in which a budget counts money: a millionth of its currency, unless it names another one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Currency {
    /// Such as `USD`.
    code: Arc<str>,
    /// How many decimals the unit has: 6 for a millionth.
    decimals: u32,
}

/// Millionths of a currency: the finest unit, and that of prices.
pub const FINEST: u32 = 6;

impl Currency {
    /// The currency of an amount, in millionths.
    ///
    /// # Errors
    /// What is wrong with the amount.
    pub fn of_amount(text: &str) -> Result<Currency, String> {
        let (_, code) = split(text)?;
        Ok(Currency {
            code: code.into(),
            decimals: FINEST,
        })
    }

    /// Reads a unit: `"0.0001 USD"`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn of_unit(text: &str) -> Result<Currency, String> {
        let (number, code) = split(text)?;
        let fraction = number.strip_prefix("0.");
        let is_power = |rest: &&str| {
            rest.strip_suffix('1')
                .is_some_and(|of| of.bytes().all(|c| c == b'0'))
        };
        let decimals = fraction
            .filter(is_power)
            .and_then(|rest| u32::try_from(rest.len()).ok());
        match decimals.filter(|decimals| *decimals <= FINEST) {
            Some(decimals) => Ok(Currency {
                code: code.into(),
                decimals,
            }),
            _ => Err(format!("is one of \"0.1 {code}\" to \"0.000001 {code}\"")),
        }
    }

    /// An amount in units.
    ///
    /// # Errors
    /// It is no amount of this currency, it has more decimals than the unit, or it is too large.
    pub fn units(&self, text: &str) -> Result<i64, String> {
        let (number, code) = split(text)?;
        if *code != *self.code {
            return Err(format!("is in {code}, and this budget is in {}", self.code));
        }
        let units = decimal(number, self.decimals);
        let units = units.ok_or_else(|| {
            let unit = self.show(1);
            format!(
                "is no number of at most {} decimals: {unit} is the unit",
                self.decimals
            )
        })?;
        match i64::try_from(units) {
            Ok(units) if units <= LARGEST_NUMBER => Ok(units),
            _ => Err(format!(
                "is more than {}: write a larger `unit`, such as \"0.0001 {code}\", and then what was spent, with \
                 `ojs-throttle limit KEY --used`",
                self.show(LARGEST_NUMBER.unsigned_abs())
            )),
        }
    }

    /// Units of what costs so many millionths of a millionth of the currency, rounded up.
    pub fn units_of(&self, trillionths: u128) -> u64 {
        let unit = 10_u128.pow(12 - self.decimals);
        u64::try_from(trillionths.div_ceil(unit)).unwrap_or(u64::MAX)
    }

    /// Its three letters.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// So many units as an amount: `431.20 USD`.
    pub fn show(&self, units: u64) -> String {
        let (whole, places) = (10_u64.pow(self.decimals), self.decimals as usize);
        let fraction = format!("{:0places$}", units % whole);
        let fraction = fraction.trim_end_matches('0');
        format!("{}.{fraction:0<2} {}", units / whole, self.code)
    }
}

/// The number and the currency of an amount.
fn split(text: &str) -> Result<(&str, &str), String> {
    let is_code = |code: &str| code.len() == 3 && code.bytes().all(|c| c.is_ascii_uppercase());
    let begins = text.find(|c: char| c.is_ascii_alphabetic());
    match text.split_at(begins.unwrap_or(text.len())) {
        (number, code) if is_code(code) => Ok((number.trim_end(), code)),
        _ => Err("is an amount with its currency, such as \"800 USD\"".to_owned()),
    }
}

/// A number with at most so many decimals, in units of the last of them.
fn decimal(text: &str, decimals: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |digits: &str| digits.bytes().all(|c| c.is_ascii_digit());
    let missing = (decimals as usize).checked_sub(fraction.len())?;
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let all = [whole, fraction, &"0".repeat(missing)].concat();
    all.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_units_and_back() {
        let usd = Currency::of_amount("800 USD").unwrap();
        let table = [
            ("800 USD", Ok(800_000_000), "800.00 USD"),
            ("0.000001 USD", Ok(1), "0.000001 USD"),
            ("1.25 USD", Ok(1_250_000), "1.25 USD"),
            ("431.2USD", Ok(431_200_000), "431.20 USD"),
            ("1000 USD", Ok(1_000_000_000), "1000.00 USD"),
        ];
        for (text, units, shown) in table {
            assert_eq!(usd.units(text), units, "{text}");
            assert_eq!(usd.show(units.unwrap().unsigned_abs()), shown);
        }
        let wrong = [
            "800",
            "800 usd",
            "800 EUR",
            "0.0000001 USD",
            "1000.01 USD",
            "-1 USD",
            "1e3 USD",
            " USD",
            "1. USD x",
        ];
        for text in wrong {
            assert!(usd.units(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_unit_is_a_power_of_ten() {
        for (text, decimals) in [("0.1 USD", 1), ("0.0001 EUR", 4), ("0.000001 USD", 6)] {
            assert_eq!(
                Currency::of_unit(text).unwrap().decimals,
                decimals,
                "{text}"
            );
        }
        for text in [
            "1 USD",
            "0.0000001 USD",
            "0.02 USD",
            "0.11 USD",
            "0.101 USD",
            "0.01",
        ] {
            assert!(Currency::of_unit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn costs_are_rounded_up() {
        let usd = Currency::of_amount("1 USD").unwrap();
        // 1,000 tokens at 0.15 USD for a million of them.
        assert_eq!(usd.units_of(1_000 * 150_000), 150);
        assert_eq!(usd.units_of(1), 1);
        let coarse = Currency::of_unit("0.0001 USD").unwrap();
        assert_eq!(coarse.units_of(1_000 * 150_000), 2);
    }
}

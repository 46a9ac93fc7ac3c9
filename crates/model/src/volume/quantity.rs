//! Quantities of Kubernetes in bytes: `10Gi`, `1.5G`, `1e9`, `128974848000m`.

const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// A quantity in whole bytes, rounded up and saturating at 64 bits; `None` if it is invalid or negative.
#[must_use]
pub fn parse_quantity(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_ends = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let (factor, divisor) = scale(suffix)?;
    let tenths = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let bytes = digits
        .checked_mul(factor)
        .map(|scaled| scaled.div_ceil(tenths.saturating_mul(divisor)));
    Some(bytes.map_or(u64::MAX, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX)))
}

/// The factor and divisor of a suffix.
fn scale(suffix: &str) -> Option<(u128, u128)> {
    if let Some(nth) = BINARY.iter().position(|binary| *binary == suffix) {
        return Some((1 << (10 * (nth + 1)), 1));
    }
    let power = |exponent: i32| {
        let size = 10_u128.checked_pow(exponent.unsigned_abs())?;
        Some(if exponent < 0 { (1, size) } else { (size, 1) })
    };
    match suffix {
        "n" => power(-9),
        "u" => power(-6),
        "m" => power(-3),
        "" => power(0),
        "k" => power(3),
        "M" => power(6),
        "G" => power(9),
        "T" => power(12),
        "P" => power(15),
        "E" => power(18),
        _ => power(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

/// A readable quantity: with the largest binary suffix that is exact.
#[must_use]
pub fn quantity(bytes: u64) -> String {
    let exact = |nth: &usize| bytes != 0 && bytes.is_multiple_of(1 << (10 * (nth + 1)));
    match (0..BINARY.len()).rev().find(exact) {
        Some(nth) => format!("{}{}", bytes >> (10 * (nth + 1)), BINARY[nth]),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_of_kubernetes_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("1024", 1024),
            ("10Gi", 10 << 30),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("5.Ki", 5 << 10),
            ("1G", 1_000_000_000),
            ("1k", 1000),
            ("128974848000m", 128_974_848),
            ("1m", 1),
            ("1e3", 1000),
            ("1E3", 1000),
            ("2E", 2_000_000_000_000_000_000),
            ("1500e-3", 2),
            ("+7", 7),
            ("16Ei", u64::MAX),
            ("99999999999999999999999999999999999Ei", u64::MAX),
        ] {
            assert_eq!(parse_quantity(text), Some(bytes), "{text}");
        }
        for text in ["", "Gi", "-1", "1 Gi", "1.2.3", "1gi", "1Kib", ".", "1e", "ten"] {
            assert_eq!(parse_quantity(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_are_printed_with_the_largest_binary_suffix() {
        assert_eq!(quantity(10 << 30), "10Gi");
        assert_eq!(quantity(1 << 62), "4Ei");
        assert_eq!(quantity(1025 << 20), "1025Mi");
        assert_eq!(quantity(1_000_000_000), "1000000000");
        assert_eq!(quantity(0), "0");
    }

    proptest! {
        #[test]
        fn sizes_survive_the_round_trip(bytes: u64) {
            prop_assert_eq!(parse_quantity(&quantity(bytes)), Some(bytes));
        }

        #[test]
        fn no_text_makes_parsing_a_size_panic(text in "[0-9.eEmKkGi+-]{0,60}") {
            let _ = parse_quantity(&text);
        }
    }
}

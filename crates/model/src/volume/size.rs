use super::SpecError;

/// Size of a twin whose request has none.
const DEFAULT_SIZE: u64 = 1 << 30;

/// The size range of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeRange {
    required: u64,
    limit: Option<u64>,
}

impl SizeRange {
    /// The range of a request, where zero means "not given".
    pub fn new(required: i64, limit: i64) -> Result<Self, SpecError> {
        let required = u64::try_from(required).map_err(|_| SpecError::NegativeSize("required size"))?;
        let limit = u64::try_from(limit).map_err(|_| SpecError::NegativeSize("size limit"))?;
        if limit != 0 && limit < required {
            return Err(SpecError::EmptyRange { required, limit });
        }
        Ok(Self {
            required,
            limit: (limit != 0).then_some(limit),
        })
    }

    /// Minimum size; zero if none is required.
    #[must_use]
    pub fn required(self) -> u64 {
        self.required
    }

    /// Maximum size.
    #[must_use]
    pub fn limit(self) -> Option<u64> {
        self.limit
    }

    /// The size that the twin requests: never zero, because a claim needs a size.
    #[must_use]
    pub fn request(self) -> u64 {
        match (self.required, self.limit) {
            (0, limit) => limit.map_or(DEFAULT_SIZE, |limit| limit.min(DEFAULT_SIZE)),
            (required, _) => required,
        }
    }

    /// Whether a volume of this size satisfies the request.
    #[must_use]
    pub fn accepts(self, bytes: u64) -> bool {
        bytes >= self.required && self.limit.is_none_or(|limit| bytes <= limit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_size_without_minimum_is_the_default_or_the_limit() {
        let request = |required, limit| SizeRange::new(required, limit).unwrap().request();
        assert_eq!(request(5, 0), 5);
        assert_eq!(request(0, 0), DEFAULT_SIZE);
        assert_eq!(request(0, 7), 7);
        assert_eq!(request(0, i64::MAX), DEFAULT_SIZE);
    }

    #[test]
    fn impossible_sizes_are_errors() {
        assert!(matches!(SizeRange::new(-1, 0), Err(SpecError::NegativeSize(_))));
        assert!(matches!(SizeRange::new(0, -1), Err(SpecError::NegativeSize(_))));
        assert!(matches!(SizeRange::new(9, 8), Err(SpecError::EmptyRange { .. })));
    }

    proptest! {
        #[test]
        fn the_requested_size_is_within_the_range(required: i64, limit: i64) {
            if let Ok(range) = SizeRange::new(required, limit) {
                prop_assert!(range.accepts(range.request()));
                prop_assert!(range.request() > 0);
            }
        }
    }
}

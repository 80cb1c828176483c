// Initial values as a pure function of (seed, exported name, element index in the exported shape).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "dtrain/param/parameter_spec.h"

namespace dtrain::param {

/// Fills `storage` (spec.shape: the slice that this rank holds) with normal values of standard
/// deviation spec.init_stddev around 0, rounded to float32 whatever the storage's dtype is, so that
/// every layout and dtype starts from the same numbers, and a slice from those that it has in the
/// whole. Allocates no more than a slice.
///
/// Source: Box and Muller 1958 over Philox words; four values a counter.
void initialise(const ParameterSpec& spec, std::uint64_t seed, const at::Tensor& storage);

}  // namespace dtrain::param

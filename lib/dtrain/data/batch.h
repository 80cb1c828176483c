// The tokens that a rank computes on in one forward pass.
#pragma once

#include <cstdint>
#include <vector>

namespace dtrain::data {

/// One microbatch of token ids.
///
/// Shapes: inputs and targets (num_sequences, length), row-major; targets[r][t] is the token that
///         follows inputs[r][t].
/// Units:  first_sample counts samples consumed before row 0; row r is sample first_sample + r.
struct Batch {
  std::vector<std::int64_t> inputs{};
  std::vector<std::int64_t> targets{};
  std::int64_t first_sample = 0;
  std::int64_t num_sequences = 0;
  std::int64_t length = 0;
};

}  // namespace dtrain::data

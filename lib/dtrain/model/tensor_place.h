// The part of every block that a rank computes.
#pragma once

#include <cstdint>

namespace dtrain::model {

/// A rank's place on the tensor axis: what a model is made for. The default holds the whole model.
struct TensorPlace {
  std::int64_t index = 0;
  std::int64_t size = 1;
  bool splits_vocab = false;  ///< embedding and output matrix are cut too

  [[nodiscard]] bool is_whole() const { return size == 1; }
};

}  // namespace dtrain::model

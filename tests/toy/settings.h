// The settings of the toy family: two sizes that must agree.
#pragma once

#include <cstdint>

namespace dtrain::config::toy {

struct Settings {
  std::int64_t hidden = 32;  // H, of a level
  std::int64_t groups = 4;   // equal parts of the hidden units
  bool tie_layers = true;    // all layers share one set of matrices
};

}  // namespace dtrain::config::toy

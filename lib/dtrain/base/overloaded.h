// A visitor for std::visit, made of one function per alternative.
#pragma once

namespace dtrain::base {

/// Calls the function whose parameter has the type of the variant's value.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace dtrain::base

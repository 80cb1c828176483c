// A visitor for std::visit, made of one function per alternative.
#pragma once

namespace dtrain::base {

template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

}  // namespace dtrain::base

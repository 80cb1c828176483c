// Errors of files, with the flag that named the file.
#pragma once

#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::app {

/// Calls `open`, and has the message of an error begin with `flag`: readers know the path alone.
template <typename Open>
void open_for(std::string_view flag, Open open) {
  try {
    open();
  } catch (const base::Error& error) {
    base::fail(error.kind(), "{}: {}", flag, error.what());
  }
}

}  // namespace dtrain::app

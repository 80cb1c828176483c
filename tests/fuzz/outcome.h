// The allowed outcomes of a parser on untrusted input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"

namespace dtrain::fuzz {

/// Ends the process in a way that the fuzzer notices.
[[noreturn]] inline void give_up(const char* what, const std::string& detail) {
  std::fprintf(stderr, "%s: %s\n", what, detail.c_str());
  std::abort();
}

inline void require(bool condition, const char* what) {
  if (!condition) give_up("not so", what);
}

/// Runs parse(), which must succeed, or refuse with one line that names the file.
template <typename Parse>
void parse_or_refuse(std::string_view file, Parse parse,
                     base::ErrorKind kind = base::ErrorKind::checkpoint) {
  try {
    parse();
  } catch (const base::Error& error) {
    const std::string message = error.what();
    if (error.kind() != kind) give_up("of another kind", message);
    if (message.find(file) == std::string::npos) give_up("does not name the file", message);
    if (message.find('\n') != std::string::npos) give_up("is more than one line", message);
  }
}

}  // namespace dtrain::fuzz

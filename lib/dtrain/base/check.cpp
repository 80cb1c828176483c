#include "dtrain/base/check.h"

#include <cstring>

namespace dtrain::base::detail {

void check_failed(const char* condition, const char* file, int line, const std::string& message) {
  const char* name = std::strrchr(file, '/');
  fail(ErrorKind::internal, "internal check failed: {} at {}:{}{}{}; please report this", condition,
       name != nullptr ? name + 1 : file, line, message.empty() ? "" : ": ", message);
}

}  // namespace dtrain::base::detail

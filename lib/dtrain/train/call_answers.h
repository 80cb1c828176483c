// What a rank tells dtrun of its calls.
#pragma once

#include <exception>

#include "dtrain/base/launcher_link.h"
#include "dtrain/mesh/mesh_groups.h"

namespace dtrain::train {

/// Lets dtrun query the calls of these groups during its lifetime. A rank that fails sends them
/// unasked: by the time dtrun finds the rank that the others waited for, they have ended.
///
/// Threads: one; dtrun is answered from another.
class CallAnswers {
 public:
  CallAnswers(base::LauncherLink& link, const mesh::MeshGroups& groups) : link_(link) {
    link_.answer_with([&groups] { return groups.call_lines(); });
  }
  ~CallAnswers() {
    if (std::uncaught_exceptions() > exceptions_) link_.send_records();
    link_.answer_with({});
  }
  CallAnswers(const CallAnswers&) = delete;
  CallAnswers& operator=(const CallAnswers&) = delete;

 private:
  base::LauncherLink& link_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace dtrain::train

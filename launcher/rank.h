// What the supervisor knows of one rank.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dtrain/base/error.h"
#include "launcher/descriptor.h"
#include "launcher/rank_stream.h"

namespace launcher {

/// How a process ended.
struct RankEnd {
  std::int64_t time_ns = 0;  // since the ranks were started
  bool by_signal = false;
  int code = 0;  // exit status, or signal

  /// Whether it ended as a job that was asked to save and stop does.
  [[nodiscard]] bool saved() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::interrupted);
  }
  [[nodiscard]] bool failed() const { return by_signal || (code != 0 && !saved()); }
  /// Whether by its own account another rank's failure ended it.
  [[nodiscard]] bool blames_another() const {
    return !by_signal && code == static_cast<int>(dtrain::base::ErrorKind::comm);
  }
  [[nodiscard]] int exit_status() const { return by_signal ? 128 + code : code; }
};

struct Rank {
  int index = 0;
  pid_t pid = -1;
  Descriptor pidfd;    // readable once the process has ended
  Descriptor control;  // dtrun's end of DTRUN_CONTROL_FD
  std::string control_partial;
  RankStream output;
  RankStream error;
  std::int64_t step = -1;  // last one it reported
  bool stopped = false;    // by SIGSTOP or the like
  std::optional<RankEnd> end;

  [[nodiscard]] bool running() const { return !end; }
};

}  // namespace launcher

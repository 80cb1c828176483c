// Control-plane helpers: gathering strings, comparing settings, waiting for long tasks, and clock
// offsets.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/clock.h"
#include "dtrain/comm/process_group.h"

namespace dtrain::comm {

/// All-gathers one string per rank; returns them by rank.
///
/// Collective: every rank of `group`.
/// Throws:     what Work::wait throws.
[[nodiscard]] std::vector<std::string> exchange_texts(ProcessGroup& group, const std::string& text);

/// Gathers the strings on rank 0. The other ranks send only their own, and get an empty list.
[[nodiscard]] std::vector<std::string> gather_texts(ProcessGroup& group, const std::string& text);

/// A setting that must agree on all ranks: its user-visible name, and this rank's value.
using NamedValue = std::pair<std::string, std::string>;

/// Checks that every rank has the same list. Exchanges 16 bytes per rank if they agree.
///
/// Collective: every rank of `group`.
/// Throws:     Error{usage}, the same on every rank, naming the first entry that differs, the two
///             ranks and their values.
void check_agreement(ProcessGroup& group, const std::vector<NamedValue>& values);

/// Runs `task` in a separate thread, and returns when it has ended on all ranks. A rank without a
/// task (nullptr) waits for the others. Meanwhile ranks exchange heartbeats every half second, so
/// that a slow rank is not mistaken for a hang. During a long task, the rank prints about once a
/// minute that it is still `what` ("writing FILE"). `task` must not communicate.
///
/// Collective: every rank of `group`.
/// Throws:     the exception of this rank's task; if only another rank's task failed, Error{comm}
///             saying that a rank failed at `what`.
void run_long(ProcessGroup& group, std::string_view what, const std::function<void()>& task);

/// Runs `task` on the group's rank 0 alone, as run_long.
void run_long_on_leader(ProcessGroup& group, std::string_view what,
                        const std::function<void()>& task);

/// Runs `text` on the group's rank 0, however long it takes, and broadcasts its result.
///
/// Collective: every rank of `group`.
/// Throws:     as run_long.
[[nodiscard]] std::string leader_text(ProcessGroup& group, std::string_view what,
                                      const std::function<std::string()>& text);

/// Reads a rank's clock.
using ReadClock = std::function<base::Clock::time_point()>;

/// Measures how far this rank's clock is ahead of rank 0's, accurate to half of the shortest of
/// several round trips; 0 on rank 0's host, where all ranks share one clock. host: names this
/// rank's host.
///
/// Collective: every rank of `group`, which moves CPU tensors.
/// Throws:     what Work::wait throws.
[[nodiscard]] base::Clock::duration clock_offset(ProcessGroup& group, const std::string& host,
                                                 const ReadClock& now = &base::Clock::now);

}  // namespace dtrain::comm

// What dtrain doctor checks (machines, run folder, connections between ranks), and what it found.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/comm/process_group.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/saved_run.h"

namespace dtrain::commands::doctor {

/// One thing that is wrong, in a line that says what to do.
struct Problem {
  base::ErrorKind kind;
  std::string text;
};

/// The report. Each line is given to `output` as soon as it is found. All ranks find the same
/// problems; facts may differ, and are rank 0's.
class Findings {
 public:
  using Output = std::function<void(std::string_view)>;
  explicit Findings(Output output) : output_(std::move(output)) {}

  void fact(std::string_view name, std::string_view value);
  /// Something that costs time, but fails no job.
  void note(std::string_view text) { fact("note", text); }
  void problem(base::ErrorKind kind, std::string text);
  /// What `error` says, which every rank has met.
  void problem(const base::Error& error) { problem(error.kind(), error.what()); }

  /// A fact that ranks may have different values of: the value, or each with its ranks.
  ///
  /// values: by rank.
  void fact_of_ranks(std::string_view name, std::span<const std::string> values);
  /// One that must be equal, else it is a problem. advice: what to do then.
  void equal_fact(std::string_view name, std::span<const std::string> values,
                  std::string_view advice);

  /// Throws: Error of the first problem's kind, with its text; nothing without one.
  void require_none() const;

 private:
  Output output_;
  std::vector<Problem> problems_;
};

/// How far the ranks' clocks are from rank 0's: asked over the control plane, the quickest of some
/// answers each.
///
/// Collective: every rank of the world.
void measure_clocks(comm::World& world, Findings& findings);

/// Time and bandwidth of all-reduces of several sizes on the data plane, by the slowest rank.
///
/// Collective: every rank of the world.
void measure_all_reduce(comm::World& world, Findings& findings);

/// Hosts, versions, types of CPU, cores, memory and devices of all ranks.
///
/// record:     what the front end knows of itself: version, commit, cpu, plugins, gpus.
/// Collective: every rank of the world.
void find_machine_facts(comm::World& world, const config::Config& config,
                        const config::StartRecord& record, Findings& findings);

/// Whether all ranks see the folder that rank 0 sees, and can write there. What was not there
/// before is not there afterwards.
///
/// Collective: every rank of `world`.
void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings);

}  // namespace dtrain::commands::doctor

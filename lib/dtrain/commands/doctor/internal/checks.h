// The checks of dtrain doctor (machines, run folder, connections), and its report.
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

/// A problem, described in one line with advice.
struct Problem {
  base::ErrorKind kind;
  std::string text;
};

/// Collects problems and reports facts; passes each line to `output` at once. All ranks must report
/// the same problems; facts may differ between ranks, and those of rank 0 are reported.
class Findings {
 public:
  using Output = std::function<void(std::string_view)>;
  explicit Findings(Output output) : output_(std::move(output)) {}

  void fact(std::string_view name, std::string_view value);
  /// Reports a condition that slows a job but does not make it fail.
  void note(std::string_view text) { fact("note", text); }
  void problem(base::ErrorKind kind, std::string text);
  /// Reports, as a problem, an error that every rank has caught.
  void problem(const base::Error& error) { problem(error.kind(), error.what()); }

  /// Reports a fact that may differ between ranks: the common value, or each value with its ranks.
  ///
  /// values: by rank.
  void fact_of_ranks(std::string_view name, std::span<const std::string> values);
  /// As fact_of_ranks(), for a fact that must be equal on all ranks; a difference is a problem,
  /// which is reported with `advice`.
  void equal_fact(std::string_view name, std::span<const std::string> values,
                  std::string_view advice);

  /// Returns if there is no problem.
  ///
  /// Throws: Error of the first problem's kind, with its text.
  void require_none() const;

 private:
  Output output_;
  std::vector<Problem> problems_;
};

/// Measures the offsets of the ranks' clocks from rank 0's clock over the control plane, using the
/// shortest of several round trips.
///
/// Collective: every rank of the world.
void measure_clocks(comm::World& world, Findings& findings);

/// Measures time and bandwidth of all-reduces of several sizes on the data plane; reports those of
/// the slowest rank.
///
/// Collective: every rank of the world.
void measure_all_reduce(comm::World& world, Findings& findings);

/// Reports hosts, versions, CPU types, cores, memory and devices of all ranks.
///
/// record:     provenance from the front end: version, commit, cpu, plugins, gpus.
/// Collective: every rank of the world.
void report_machines(comm::World& world, const config::Config& config,
                     const config::StartRecord& record, Findings& findings);

/// Checks that all ranks see rank 0's run folder and can write to it. Removes everything that it
/// creates.
///
/// Collective: every rank of `world`.
void check_run_folder(comm::ProcessGroup& world, const std::string& run_dir, Findings& findings);

}  // namespace dtrain::commands::doctor

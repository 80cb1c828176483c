// Reports a run's events to metrics.jsonl, TensorBoard and the console.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/metrics/console.h"
#include "dtrain/metrics/events.h"

namespace dtrain::metrics {

class ConsoleSink;
class Sink;

/// Accepts events on every rank; only one rank's reporter has sinks and passes events on to them.
///
/// Threads: one.
class Reporter {
 public:
  struct Options {
    bool writes = true;  ///< if false, every event is dropped
    std::string metrics_path;
    bool appends = false;           ///< append to an existing metrics.jsonl
    std::string event_folder = {};  ///< for TensorBoard; empty: no TensorBoard
    std::int64_t first_step = 1;    ///< first step of this launch
    Console::Options console;
    bool is_quiet = false;        ///< the console shows only warnings, notes and the summary
    std::int64_t log_every = 10;  ///< steps between plain progress lines; 0: no progress
    std::int64_t total_steps = 0;
  };

  explicit Reporter(const Options& options);
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;
  ~Reporter();

  /// False if every event is dropped.
  [[nodiscard]] bool writes() const { return !sinks_.empty(); }
  /// Throws: Error{data} if metrics.jsonl or an event file cannot be written.
  void report(const Event& event);
  /// Reports that the run failed. Does not throw, because the failure may be one of the disk.
  void report_failure(const FailureEvent& failure) noexcept;
  void warn(std::int64_t step, const std::string& message);
  void note(const std::string& message);

  /// The terminal's width in characters; unlimited if the output is no terminal.
  [[nodiscard]] std::size_t room() const;
  /// Ends all files.
  ///
  /// Throws: Error{data} if the last parts of a file could not be written.
  void finish();

 private:
  std::vector<std::unique_ptr<Sink>> sinks_;
  const ConsoleSink* console_ = nullptr;  // one of sinks_
};

}  // namespace dtrain::metrics

// Prints the events of a run to the console: progress, warnings and the summary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "dtrain/metrics/console.h"
#include "dtrain/metrics/internal/sink.h"

namespace dtrain::metrics {

/// Prints lines and redraws the live status line.
class ConsoleSink final : public Sink {
 public:
  /// As in Reporter::Options.
  struct Options {
    Console::Options console;
    bool is_quiet = false;
    std::int64_t log_every = 10;
    std::int64_t total_steps = 0;
  };

  explicit ConsoleSink(const Options& options) : options_(options), console_(options.console) {}

  void write(const Event& event, std::span<const Figure> figures) override;
  /// The terminal's width in characters; unlimited if the output is no terminal.
  [[nodiscard]] std::size_t room() const { return console_.room(); }

 private:
  void show(const StartEvent& event);
  void show(const StepEvent& event);
  void show(const EvaluationBegin& event);
  void show(const EvaluationEvent& event);
  void show(const MemoryEvent& event);
  void show(const CheckpointEvent& event);
  void show(const ResumeEvent& event);
  // These two print lines that --quiet suppresses.
  void print(std::string_view text);
  void print_progress(std::string_view text);
  [[nodiscard]] LinePart step_part(std::int64_t step) const;
  [[nodiscard]] std::string progress_line(const StepEvent& event, std::size_t room) const;

  Options options_;
  Console console_;
  std::string last_validation_;
  double smoothed_step_seconds_ = 0;
};

}  // namespace dtrain::metrics

#include "dtrain/metrics/reporter.h"

#include <exception>
#include <utility>

#include "dtrain/metrics/internal/console_sink.h"
#include "dtrain/metrics/internal/figures.h"
#include "dtrain/metrics/internal/jsonl_sink.h"
#include "dtrain/metrics/internal/tensorboard_sink.h"

namespace dtrain::metrics {

// Files before the console: people never see an event that the files lack.
Reporter::Reporter(const Options& options) {
  if (!options.writes) return;
  sinks_.push_back(std::make_unique<JsonlSink>(options.metrics_path, options.appends));
  if (!options.event_folder.empty()) {
    sinks_.push_back(std::make_unique<TensorboardSink>(options.event_folder, options.first_step));
  }
  auto console =
      std::make_unique<ConsoleSink>(ConsoleSink::Options{.console = options.console,
                                                         .is_quiet = options.is_quiet,
                                                         .log_every = options.log_every,
                                                         .total_steps = options.total_steps});
  console_ = console.get();
  sinks_.push_back(std::move(console));
}

Reporter::~Reporter() = default;

void Reporter::report(const Event& event) {
  if (sinks_.empty()) return;
  const std::vector<Figure> figures = figures_of(event);
  for (const auto& sink : sinks_) sink->write(event, figures);
}

void Reporter::report_failure(const FailureEvent& failure) noexcept {
  try {
    report(failure);
  } catch (const std::exception&) {  // the run ends with the error that came first
  }
}

void Reporter::warn(std::int64_t step, const std::string& message) {
  report(WarningEvent{.step = step, .message = message});
}

void Reporter::note(const std::string& message) { report(NoteEvent{message}); }

std::size_t Reporter::room() const { return console_ ? console_->room() : std::string::npos; }

void Reporter::finish() {
  for (const auto& sink : sinks_) sink->finish();
}

}  // namespace dtrain::metrics

#include "dtrain/metrics/internal/console_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <variant>

#include "dtrain/base/overloaded.h"
#include "dtrain/base/text/text.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/internal/summary_text.h"

namespace dtrain::metrics {
namespace {

// A prediction that is off by fewer bytes is right, however small the run is.
constexpr std::int64_t kSmallDifference = std::int64_t{4} << 20;

// With a loss scale, a gradient that overflows float16 is no fault: the scale is halved
// (docs/guide/determinism.md).
std::string gradient_of(const StepEvent& event) {
  const bool overflows = event.loss_scaling && !std::isfinite(event.grad_norm);
  return overflows ? "grad overflow"
                   : fmt::format("grad {:.3f}", without_nan_sign(event.grad_norm));
}

}  // namespace

void ConsoleSink::write(const Event& event, std::span<const Figure> /*figures*/) {
  std::visit(base::Overloaded{
                 [this](const SampleEvent& e) {
                   print_progress(fmt::format("step {} | sample: {}", e.step, e.text));
                 },
                 [this](const WarningEvent& e) { console_.print("dtrain: warning: " + e.message); },
                 [this](const NoteEvent& e) { console_.print(wrap_words(e.message, room())); },
                 [this](const StopEvent& e) { console_.print(wrap_words(e.message, room())); },
                 [this](const RunSummary& e) { console_.print_progress(summary_text(e)); },
                 [](const RecoveryEvent&) {}, [](const FailureEvent&) {},
                 [this](const auto& e) { show(e); }},
             event);
}

void ConsoleSink::print(std::string_view text) {
  if (!options_.is_quiet) console_.print(text);
}

void ConsoleSink::print_progress(std::string_view text) {
  if (!options_.is_quiet) console_.print_progress(text);
}

LinePart ConsoleSink::step_part(std::int64_t step) const {
  return {.text = fmt::format("step {}/{}", step, options_.total_steps),
          .drop_order = 0,
          .brief = fmt::format("step {}", step)};
}

std::string ConsoleSink::progress_line(const StepEvent& event, std::size_t room) const {
  const double left =
      static_cast<double>(options_.total_steps - event.step) * smoothed_step_seconds_;
  const std::string scaling = event.loss_scaling
                                  ? fmt::format("scale {:g}, {} skipped", event.loss_scaling->scale,
                                                event.loss_scaling->skipped_steps)
                                  : std::string();
  return fit_parts({step_part(event.step),
                    {fmt::format("loss {:.4f}", without_nan_sign(event.loss)), 0},
                    {gradient_of(event), 4},
                    {fmt::format("lr {:.2e}", event.learning_rate), 5},
                    {fmt::format("{} tok/s", format_rate(event.tokens_per_second)), 2},
                    {event.mfu ? fmt::format("mfu {:.0f}%", 100 * *event.mfu) : "", 8},
                    {format_bytes(event.memory_bytes), 9},
                    {fmt::format("eta {}", format_duration(left)), 1},
                    {scaling, 3},
                    {last_validation_, 6}},
                   room);
}

void ConsoleSink::show(const StartEvent& event) { print(wrap_words(event.table, room())); }

void ConsoleSink::show(const EvaluationBegin& event) {
  if (options_.is_quiet) return;
  console_.show_progress(fit_parts({step_part(event.step), {"evaluating ...", 0}}, room()));
}

void ConsoleSink::show(const StepEvent& event) {
  constexpr double kSmoothing = 0.1;
  smoothed_step_seconds_ =
      smoothed_step_seconds_ == 0
          ? event.step_seconds
          : smoothed_step_seconds_ + kSmoothing * (event.step_seconds - smoothed_step_seconds_);
  if (options_.log_every == 0 || options_.is_quiet) return;
  const std::string line = progress_line(event, room());
  if (event.step % options_.log_every == 0 || event.step == 1 ||
      event.step == options_.total_steps) {
    console_.print_progress(line);
  }
  console_.show_progress(line);
}

void ConsoleSink::show(const EvaluationEvent& event) {
  const double loss = without_nan_sign(event.val_loss);
  last_validation_ = fmt::format("val {:.4f}", loss);
  print_progress(
      fmt::format("step {} | validation loss {:.4f}{}", event.step, loss, units_text(event)));
}

void ConsoleSink::show(const MemoryEvent& event) {
  const double percent =
      100 * static_cast<double>(event.predicted) / static_cast<double>(event.peak);
  const std::int64_t difference = std::abs(event.predicted - event.peak);
  const bool is_accurate = difference <= std::max(event.peak / 10, kSmallDifference);
  const std::string text =
      fmt::format("memory: predicted {}, measured peak {} (predicted/measured {:.0f}%)",
                  format_bytes(event.predicted), format_bytes(event.peak), percent);
  is_accurate ? print(text) : console_.print("dtrain: warning: " + text);
}

// Steps continue during a save: without a step in front, the line does not look out of order.
void ConsoleSink::show(const CheckpointEvent& event) {
  print_progress(fmt::format("checkpoint of step {} is complete: {} ({} in {}, stall {})",
                             event.step, event.path, format_bytes(event.bytes),
                             base::readable_time(event.seconds),
                             base::readable_time(event.stall_seconds)));
}

void ConsoleSink::show(const ResumeEvent& event) {
  print(fmt::format("resumed from {} after step {} in {}", event.path, event.step,
                    base::readable_time(event.seconds)));
}

}  // namespace dtrain::metrics

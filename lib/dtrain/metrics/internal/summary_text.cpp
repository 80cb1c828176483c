#include "dtrain/metrics/internal/summary_text.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "dtrain/base/text/text.h"
#include "dtrain/metrics/format.h"
#include "dtrain/metrics/internal/figures.h"

namespace dtrain::metrics {
namespace {

// A resumed launch did only the last steps of the run.
std::string done_line(const RunSummary& summary) {
  if (summary.steps_here == 0 && !summary.reason.empty()) {
    return fmt::format(
        "ended by {}: step {}, nothing trained in this launch; raise it to continue\n",
        summary.reason, summary.steps);
  }
  if (summary.steps_here == 0) {
    return fmt::format("done: step {}, nothing left to train; raise --steps to continue\n",
                       summary.steps);
  }
  const std::string what = summary.steps_here == summary.steps
                               ? counted(summary.steps, "step")
                               : fmt::format("step {}, {} since this launch", summary.steps,
                                             counted(summary.steps_here, "step"));
  const std::string rate =
      fmt::format("{} in {} ({} tok/s)\n", what, base::readable_time(summary.time.total),
                  format_rate(summary.tokens_per_second));
  return (summary.reason.empty() ? "done: " : "ended by " + summary.reason + ": ") + rate;
}

// "  time            steps 4.2 s, evaluation 1.3 s, saving 0.2 s": the parts of the total in the
// line above, without those below a hundredth.
std::string time_line(const TimeBreakdown& time) {
  constexpr double kLeastShare = 0.01;
  const double rest = time.total - time.steps - time.evaluation - time.saving;
  std::string text;
  for (const auto& [name, seconds] : {std::pair{"steps", time.steps},
                                      {"evaluation", time.evaluation},
                                      {"saving", time.saving},
                                      {"other", rest}}) {
    if (seconds < kLeastShare * time.total) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, base::readable_time(seconds));
  }
  return fmt::format("  time            {}\n", text);
}

// "training loss   2.1234 nats per token, mean of steps 51 to 100"
std::string train_loss_line(const MeanLoss& mean) {
  const std::int64_t count = mean.last_step - mean.first_step + 1;
  std::string steps = fmt::format("steps {} to {}", mean.first_step, mean.last_step);
  if (mean.num_losses < count) {
    steps = fmt::format("the {} finite losses of {}", mean.num_losses, steps);
  }
  return fmt::format("  training loss   {:.4f} nats per token, {}\n", mean.loss,
                     count == 1 ? fmt::format("of step {}", mean.last_step) : "mean of " + steps);
}

// Empty if nothing was measured. kind: how the figure was measured.
template <typename T, typename Format>
std::string compared_line(std::string_view name, const Compared<T>& figure, Format format,
                          const std::string& kind) {
  if (!figure.measured) return {};
  const std::string predicted =
      figure.predicted ? fmt::format(", {} predicted ({:.0f}%)", format(*figure.predicted),
                                     100 * static_cast<double>(*figure.predicted) /
                                         static_cast<double>(*figure.measured))
                       : std::string();
  return fmt::format("  {:<15} {} {}{}\n", name, format(*figure.measured), kind, predicted);
}

// Empty if the run keeps no record of its lowest loss.
std::string best_line(const RunSummary& summary) {
  if (!summary.best) return {};
  const BestCheckpoint& best = *summary.best;
  return fmt::format("  lowest          {:.4f} nats per token, after step {}{}\n", best.val_loss,
                     best.step, best.path.empty() ? "" : ": " + best.path);
}

}  // namespace

std::string summary_text(const RunSummary& summary) {
  std::string text = done_line(summary);
  if (summary.steps_here > 0) text += time_line(summary.time);
  if (summary.train_loss) text += train_loss_line(*summary.train_loss);
  if (summary.validation) {
    text += fmt::format("  validation loss {:.4f} nats per token{}\n", summary.validation->val_loss,
                        units_text(*summary.validation));
  }
  text += best_line(summary);
  text += compared_line("step", summary.step_seconds, format_step_time,
                        fmt::format("median of {}", counted(summary.median_steps, "step")));
  text += compared_line("memory", summary.memory, format_bytes,
                        summary.memory_ranks == 1
                            ? "measured"
                            : fmt::format("measured for all {} ranks", summary.memory_ranks));
  if (summary.skipped_updates > 0) {
    text += fmt::format("  updates skipped {}, since this launch\n", summary.skipped_updates);
  }
  if (summary.failed_checkpoints > 0) {
    text += fmt::format("  checkpoints     {} could not be saved\n", summary.failed_checkpoints);
  }
  return text + "  model           " + summary.model_path;
}

std::string units_text(const EvaluationEvent& event) {
  std::string text;
  if (event.bits_per_byte) {
    text += fmt::format(", {:.4f} bits per byte", without_nan_sign(*event.bits_per_byte));
  }
  if (event.perplexity_per_word) {
    text +=
        fmt::format(", perplexity per word {:.4g}", without_nan_sign(*event.perplexity_per_word));
  }
  return text;
}

}  // namespace dtrain::metrics

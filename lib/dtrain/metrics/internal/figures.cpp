#include "dtrain/metrics/internal/figures.h"

#include <cmath>
#include <optional>

#include "dtrain/metrics/format.h"
#include "dtrain/metrics/metrics_file.h"

namespace dtrain::metrics {
namespace {

using Figures = std::vector<Figure>;

Figure curve(std::string_view key, std::string_view tag, double value) {
  return {std::string(key), json_number(value), tag, without_nan_sign(value)};
}

Figure curve(std::string_view key, std::string_view tag, std::int64_t value) {
  return {std::string(key), value, tag, static_cast<double>(value)};
}

// MFU is null in metrics.jsonl while it is unknown, and has no point then.
Figure mfu_curve(const std::optional<double>& mfu) {
  return mfu ? curve("mfu", "speed/mfu", *mfu) : Figure{"mfu", nullptr};
}

Figures figures_in(const StartEvent& event) {
  Figures figures{{"event", "start"}};
  for (const auto& [key, value] : event.fields.items()) figures.push_back({key, value});
  return figures;
}

Figures figures_in(const StepEvent& event) {
  Figures figures{{"step", event.step},
                  curve("loss", "train/loss", event.loss),
                  curve("grad_norm", "train/grad_norm", event.grad_norm),
                  curve("learning_rate", "train/learning_rate", event.learning_rate),
                  {"tokens", event.tokens},
                  {"samples", event.samples},
                  curve("tokens_per_second", "speed/tokens_per_second", event.tokens_per_second),
                  curve("step_seconds", "speed/step_seconds", event.step_seconds),
                  curve("wait_seconds", "speed/wait_seconds", event.wait_seconds),
                  mfu_curve(event.mfu),
                  curve("memory_bytes", "machine/memory_bytes", event.memory_bytes),
                  curve("comm_bytes", "machine/comm_bytes", event.comm_bytes)};
  if (const auto& scaling = event.loss_scaling) {
    figures.push_back(curve("loss_scale", "train/loss_scale", scaling->scale));
    figures.push_back({"skipped_steps", scaling->skipped_steps});
  }
  if (const auto& stats = event.compression) {
    figures.push_back(curve("bytes_saved", "machine/bytes_saved", stats->bytes_saved));
    figures.push_back(curve("residual_norm", "train/residual_norm", stats->residual_norm));
    figures.push_back(curve("compress_seconds", "speed/compress_seconds", stats->seconds));
  }
  return figures;
}

// The validation loss in the units that the text's size allows.
void add_units(const EvaluationEvent& event, Figures& figures) {
  if (event.bits_per_byte) {
    figures.push_back(curve("bits_per_byte", "validation/bits_per_byte", *event.bits_per_byte));
  }
  if (event.perplexity_per_word) {
    figures.push_back(
        curve("perplexity_per_word", "validation/perplexity_per_word", *event.perplexity_per_word));
  }
}

Figures figures_in(const EvaluationEvent& event) {
  Figures figures{{"event", "eval"},
                  {"step", event.step},
                  curve("val_loss", "validation/loss", event.val_loss),
                  {"tokens", event.tokens}};
  add_units(event, figures);
  if (!event.data.empty()) figures.push_back({"data", event.data});
  return figures;
}

Figures figures_in(const SampleEvent& event) {
  return {{"event", "sample"}, {"step", event.step}, {"text", event.text}};
}

Figures figures_in(const MemoryEvent& event) {
  return {{"event", "memory"},
          {"step", event.step},
          {"predicted_bytes", event.predicted},
          {"peak_bytes", event.peak}};
}

Figures figures_in(const CheckpointEvent& event) {
  return {{"event", "checkpoint"},
          {"step", event.step},
          {"path", event.path},
          {"bytes", event.bytes},
          {"stall_seconds", event.stall_seconds},
          {"seconds", event.seconds}};
}

Figures figures_in(const ResumeEvent& event) {
  return {
      {"event", "resume"}, {"step", event.step}, {"path", event.path}, {"seconds", event.seconds}};
}

Figures figures_in(const RecoveryEvent& event) {
  return {{"event", "recovery"}, {"step", event.step}, {"seconds", event.seconds}};
}

Figures figures_in(const WarningEvent& event) {
  return {{"event", "error"}, {"step", event.step}, {"message", event.message}};
}

Figures figures_in(const StopEvent& event) {
  return {{"event", "stop"},
          {"step", event.step},
          {"reason", event.reason},
          {"checkpoint", event.checkpoint}};
}

// The message may quote bytes that are no text.
Figures figures_in(const FailureEvent& event) {
  return {{"event", "failure"}, {"step", event.step}, {"message", readable_text(event.message)}};
}

template <typename T>
void add_compared(std::string_view key, const Compared<T>& figure, Figures& figures) {
  const std::string name(key);
  if (figure.measured) figures.push_back({name, *figure.measured});
  if (figure.predicted) figures.push_back({"predicted_" + name, *figure.predicted});
}

Figures figures_in(const RunSummary& event) {
  Figures figures{{"event", "end"}, {"step", event.steps}};
  if (!event.reason.empty()) figures.push_back({"reason", event.reason});
  if (const auto& mean = event.train_loss) {
    figures.push_back({"train_loss", json_number(mean->loss)});
    figures.push_back(
        {"train_loss_steps", nlohmann::ordered_json::array({mean->first_step, mean->last_step})});
  }
  figures.push_back({"seconds", event.time.total});
  figures.push_back({"tokens_per_second", event.tokens_per_second});
  figures.push_back({"model", event.model_path});
  figures.push_back({"skipped_updates", event.skipped_updates});
  figures.push_back({"failed_checkpoints", event.failed_checkpoints});
  add_compared("step_seconds", event.step_seconds, figures);
  add_compared("memory_bytes", event.memory, figures);
  if (event.validation) {
    figures.push_back({"val_loss", json_number(event.validation->val_loss)});
    add_units(*event.validation, figures);
  }
  if (const auto& best = event.best) {
    figures.push_back({"best_step", best->step});
    figures.push_back({"best_val_loss", json_number(best->val_loss)});
    if (!best->path.empty()) figures.push_back({"best_checkpoint", best->path});
  }
  return figures;
}

// Only people read these.
Figures figures_in(const EvaluationBegin&) { return {}; }
Figures figures_in(const NoteEvent&) { return {}; }

}  // namespace

std::vector<Figure> figures_of(const Event& event) {
  return std::visit([](const auto& each) { return figures_in(each); }, event);
}

double without_nan_sign(double value) { return std::isnan(value) ? std::abs(value) : value; }

}  // namespace dtrain::metrics

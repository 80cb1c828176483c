#include "dtrain/metrics/reporter.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "dtrain/base/text/text.h"
#include "dtrain/metrics/console.h"
#include "dtrain/metrics/format.h"

namespace dtrain::metrics {
namespace {

// Bytes by which a prediction may be wrong however small the run is.
constexpr std::int64_t kSmallDifference = std::int64_t{4} << 20;

// A NaN's sign means nothing, and depends on the processor.
double shown(double value) { return std::isnan(value) ? std::abs(value) : value; }

nlohmann::ordered_json to_json(const StepRecord& record) {
  nlohmann::ordered_json json{{"step", record.step},
                              {"loss", json_number(record.loss)},
                              {"grad_norm", json_number(record.grad_norm)},
                              {"learning_rate", record.learning_rate},
                              {"tokens", record.tokens},
                              {"samples", record.samples},
                              {"tokens_per_second", record.tokens_per_second},
                              {"step_seconds", record.step_seconds},
                              {"wait_seconds", record.wait_seconds},
                              {"mfu", record.mfu ? nlohmann::ordered_json(*record.mfu) : nullptr},
                              {"memory_bytes", record.memory_bytes},
                              {"comm_bytes", record.comm_bytes}};
  if (record.loss_scaling) {
    json["loss_scale"] = record.loss_scaling->scale;
    json["skipped_steps"] = record.loss_scaling->skipped_steps;
  }
  if (record.compression) {
    json["bytes_saved"] = record.compression->bytes_saved;
    json["residual_norm"] = json_number(record.compression->residual_norm);
    json["compress_seconds"] = record.compression->seconds;
  }
  return json;
}

// The same for TensorBoard, whose axes are steps and time.
std::vector<Scalar> curves_of(const StepRecord& record) {
  std::vector<Scalar> curves{{"train/loss", shown(record.loss)},
                             {"train/grad_norm", shown(record.grad_norm)},
                             {"train/learning_rate", record.learning_rate},
                             {"speed/tokens_per_second", record.tokens_per_second},
                             {"speed/step_seconds", record.step_seconds},
                             {"speed/wait_seconds", record.wait_seconds},
                             {"machine/memory_bytes", static_cast<double>(record.memory_bytes)},
                             {"machine/comm_bytes", static_cast<double>(record.comm_bytes)}};
  if (record.mfu) curves.push_back({"speed/mfu", *record.mfu});
  if (record.loss_scaling) curves.push_back({"train/loss_scale", record.loss_scaling->scale});
  if (record.compression) {
    curves.push_back({"machine/bytes_saved", static_cast<double>(record.compression->bytes_saved)});
    curves.push_back({"train/residual_norm", record.compression->residual_norm});
    curves.push_back({"speed/compress_seconds", record.compression->seconds});
  }
  return curves;
}

std::vector<Scalar> curves_of(const EvaluationRecord& record) {
  std::vector<Scalar> curves{{"validation/loss", shown(record.val_loss)}};
  if (record.bits_per_byte) {
    curves.push_back({"validation/bits_per_byte", shown(*record.bits_per_byte)});
  }
  if (record.perplexity_per_word) {
    curves.push_back({"validation/perplexity_per_word", shown(*record.perplexity_per_word)});
  }
  return curves;
}

void add_units(nlohmann::ordered_json& line, const EvaluationRecord& record) {
  if (record.bits_per_byte) line["bits_per_byte"] = json_number(*record.bits_per_byte);
  if (record.perplexity_per_word) {
    line["perplexity_per_word"] = json_number(*record.perplexity_per_word);
  }
}

// ", 1.234 bits per byte"; empty where the text's size is not known.
std::string units_text(const EvaluationRecord& record) {
  std::string text;
  if (record.bits_per_byte) {
    text += fmt::format(", {:.4f} bits per byte", shown(*record.bits_per_byte));
  }
  if (record.perplexity_per_word) {
    text += fmt::format(", perplexity per word {:.4g}", shown(*record.perplexity_per_word));
  }
  return text;
}

// With a loss scale a gradient beyond float16 is no fault: the scale is halved
// (docs/guide/determinism.md).
std::string gradient_of(const StepRecord& record) {
  const bool overflows = record.loss_scaling && !std::isfinite(record.grad_norm);
  return overflows ? "grad overflow" : fmt::format("grad {:.3f}", shown(record.grad_norm));
}

// A resumed start has made only the last steps of the run.
std::string done_line(const Summary& summary) {
  if (summary.steps_here == 0 && !summary.reason.empty()) {
    return fmt::format(
        "ended by {}: step {}, nothing trained in this launch; raise it to continue\n",
        summary.reason, summary.steps);
  }
  if (summary.steps_here == 0) {
    return fmt::format("done: step {}, nothing left to train\n", summary.steps);
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

// "  time            steps 4.2 s, evaluation 1.3 s, saving 0.2 s": the parts that the total of the
// line above consists of, without those below a hundredth.
std::string time_line(const TimeSpent& time) {
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

// Nothing that was not measured. kind: what the measured figure is.
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

template <typename T>
void add_compared(nlohmann::ordered_json& line, const std::string& key, const Compared<T>& figure) {
  if (figure.measured) line[key] = *figure.measured;
  if (figure.predicted) line["predicted_" + key] = *figure.predicted;
}

// Nothing of runs that keep no record of it.
std::string best_line(const Summary& summary) {
  if (!summary.best) return {};
  const BestCheckpoint& best = *summary.best;
  return fmt::format("  lowest          {:.4f} nats per token, after step {}{}\n", best.val_loss,
                     best.step, best.path.empty() ? "" : ": " + best.path);
}

}  // namespace

Reporter::Reporter(Options options) : options_(std::move(options)) {
  if (!options_.writes) return;
  using Start = AppendedFile::Start;
  file_ = std::make_unique<AppendedFile>(
      options_.metrics_path, options_.appends ? Start::appended : Start::empty, "lines");
  if (!options_.event_folder.empty()) {
    events_ = std::make_unique<EventFile>(options_.event_folder, options_.first_step);
  }
  console_ = std::make_unique<Console>(options_.console);
}

void Reporter::start(const std::string& table, const nlohmann::ordered_json& fields) {
  if (!options_.writes) return;
  nlohmann::ordered_json line{{"event", "start"}};
  line.update(fields);
  file_->write_line(line);
  if (events_) events_->text(options_.first_step - 1, "start", table);
  tell(wrap_words(table, console_->room()));
}

void Reporter::tell(std::string_view text) {
  if (!options_.is_quiet) console_->print(text);
}

void Reporter::tell_progress(std::string_view text) {
  if (!options_.is_quiet) console_->print_progress(text);
}

LinePart Reporter::step_part(std::int64_t step) const {
  return {.text = fmt::format("step {}/{}", step, options_.total_steps),
          .rank = 0,
          .brief = fmt::format("step {}", step)};
}

std::string Reporter::progress_line(const StepRecord& record, std::size_t room) const {
  const double left =
      static_cast<double>(options_.total_steps - record.step) * smoothed_step_seconds_;
  const std::string scaling =
      record.loss_scaling ? fmt::format("scale {:g}, {} skipped", record.loss_scaling->scale,
                                        record.loss_scaling->skipped_steps)
                          : std::string();
  return fit_parts({step_part(record.step),
                    {fmt::format("loss {:.4f}", shown(record.loss)), 0},
                    {gradient_of(record), 4},
                    {fmt::format("lr {:.2e}", record.learning_rate), 5},
                    {fmt::format("{} tok/s", format_rate(record.tokens_per_second)), 2},
                    {record.mfu ? fmt::format("mfu {:.0f}%", 100 * *record.mfu) : "", 8},
                    {format_bytes(record.memory_bytes), 9},
                    {fmt::format("eta {}", format_duration(left)), 1},
                    {scaling, 3},
                    {last_validation_, 6}},
                   room);
}

void Reporter::evaluating(std::int64_t step) {
  if (!options_.writes || options_.is_quiet) return;
  console_->show_progress(fit_parts({step_part(step), {"evaluating ...", 0}}, console_->room()));
}

void Reporter::step(const StepRecord& record) {
  if (!options_.writes) return;
  file_->write_line(to_json(record));
  if (events_) events_->scalars(record.step, curves_of(record));
  constexpr double kSmoothing = 0.1;
  smoothed_step_seconds_ =
      smoothed_step_seconds_ == 0
          ? record.step_seconds
          : smoothed_step_seconds_ + kSmoothing * (record.step_seconds - smoothed_step_seconds_);
  if (options_.log_every == 0 || options_.is_quiet) return;
  const std::string line = progress_line(record, console_->room());
  if (record.step % options_.log_every == 0 || record.step == 1 ||
      record.step == options_.total_steps) {
    console_->print_progress(line);
  }
  console_->show_progress(line);
}

void Reporter::evaluation(const EvaluationRecord& record) {
  if (!options_.writes) return;
  const double loss = shown(record.val_loss);
  nlohmann::ordered_json line{{"event", "eval"},
                              {"step", record.step},
                              {"val_loss", json_number(record.val_loss)},
                              {"tokens", record.tokens}};
  add_units(line, record);
  if (!record.data.empty()) line["data"] = record.data;
  file_->write_line(line);
  if (events_) events_->scalars(record.step, curves_of(record));
  last_validation_ = fmt::format("val {:.4f}", loss);
  tell_progress(
      fmt::format("step {} | validation loss {:.4f}{}", record.step, loss, units_text(record)));
}

// A byte model may write anything: what is no text is replaced, where people and JSON read it.
void Reporter::sample(std::int64_t step, const std::string& text) {
  if (!options_.writes) return;
  const std::string readable = readable_text(text);
  file_->write_line({{"event", "sample"}, {"step", step}, {"text", readable}});
  if (events_) events_->text(step, "samples", readable);
  tell_progress(fmt::format("step {} | sample: {}", step, readable));
}

void Reporter::memory(const MemoryRecord& record) {
  if (!options_.writes) return;
  file_->write_line({{"event", "memory"},
                     {"step", record.step},
                     {"predicted_bytes", record.predicted},
                     {"peak_bytes", record.peak}});
  const double percent =
      100 * static_cast<double>(record.predicted) / static_cast<double>(record.peak);
  const std::int64_t apart = std::abs(record.predicted - record.peak);
  const bool is_near = apart <= std::max(record.peak / 10, kSmallDifference);
  const std::string text =
      fmt::format("memory: predicted {}, measured peak {} (predicted/measured {:.0f}%)",
                  format_bytes(record.predicted), format_bytes(record.peak), percent);
  is_near ? tell(text) : console_->print("dtrain: warning: " + text);
}

void Reporter::checkpoint(const CheckpointRecord& record) {
  if (!options_.writes) return;
  file_->write_line({{"event", "checkpoint"},
                     {"step", record.step},
                     {"path", record.path},
                     {"bytes", record.bytes},
                     {"stall_seconds", record.stall_seconds},
                     {"seconds", record.seconds}});
  // Steps go on meanwhile: without a step in front the line does not look out of order.
  tell_progress(fmt::format("checkpoint of step {} is complete: {} ({} in {}, stall {})",
                            record.step, record.path, format_bytes(record.bytes),
                            base::readable_time(record.seconds),
                            base::readable_time(record.stall_seconds)));
}

void Reporter::resume(const ResumeRecord& record) {
  if (!options_.writes) return;
  file_->write_line({{"event", "resume"},
                     {"step", record.step},
                     {"path", record.path},
                     {"seconds", record.seconds}});
  tell(fmt::format("resumed from {} after step {} in {}", record.path, record.step,
                   base::readable_time(record.seconds)));
}

void Reporter::recovery(std::int64_t step, double seconds) {
  if (!options_.writes) return;
  file_->write_line({{"event", "recovery"}, {"step", step}, {"seconds", seconds}});
}

void Reporter::warn(std::int64_t step, const std::string& message) {
  if (!options_.writes) return;
  file_->write_line({{"event", "error"}, {"step", step}, {"message", message}});
  if (events_) events_->text(step, "warnings", message);
  console_->print("dtrain: warning: " + message);
}

std::size_t Reporter::room() const { return console_ ? console_->room() : std::string::npos; }

void Reporter::note(const std::string& message) {
  if (options_.writes) console_->print(wrap_words(message, console_->room()));
}

void Reporter::finish() {
  if (file_) file_->finish();
  if (events_) events_->finish();
}

void Reporter::failure(std::int64_t step, const std::string& message) noexcept {
  if (!options_.writes) return;
  try {
    file_->write_line({{"event", "failure"}, {"step", step}, {"message", readable_text(message)}});
  } catch (const std::exception&) {  // the run ends with the error that came first
  }
}

void Reporter::stop(const StopRecord& record) {
  if (!options_.writes) return;
  file_->write_line({{"event", "stop"},
                     {"step", record.step},
                     {"reason", record.reason},
                     {"checkpoint", record.checkpoint}});
  note(record.message);
}

void Reporter::end(const Summary& summary) {
  if (!options_.writes) return;
  nlohmann::ordered_json line{{"event", "end"}, {"step", summary.steps}};
  if (!summary.reason.empty()) line["reason"] = summary.reason;
  std::string text = done_line(summary);
  if (summary.steps_here > 0) text += time_line(summary.time);
  if (summary.train_loss) {
    line["train_loss"] = json_number(summary.train_loss->loss);
    line["train_loss_steps"] = {summary.train_loss->first_step, summary.train_loss->last_step};
    text += train_loss_line(*summary.train_loss);
  }
  line.update({{"seconds", summary.time.total},
               {"tokens_per_second", summary.tokens_per_second},
               {"model", summary.model_path},
               {"skipped_updates", summary.skipped_updates},
               {"failed_checkpoints", summary.failed_checkpoints}});
  add_compared(line, "step_seconds", summary.step_seconds);
  add_compared(line, "memory_bytes", summary.memory);
  if (summary.validation) {
    line["val_loss"] = json_number(summary.validation->val_loss);
    add_units(line, *summary.validation);
    text += fmt::format("  validation loss {:.4f} nats per token{}\n", summary.validation->val_loss,
                        units_text(*summary.validation));
  }
  if (summary.best) {
    line["best_step"] = summary.best->step;
    line["best_val_loss"] = json_number(summary.best->val_loss);
    if (!summary.best->path.empty()) line["best_checkpoint"] = summary.best->path;
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
  file_->write_line(line);
  console_->print_progress(text + "  model           " + summary.model_path);
}

}  // namespace dtrain::metrics

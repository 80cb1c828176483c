#include "dtrain/metrics/reporter.h"

#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <limits>
#include <sstream>

#include "dtrain/metrics/console.h"
#include "dtrain/metrics/metrics_file.h"
#include "support/messages.h"
#include "support/temp_folder.h"

namespace dtrain::metrics::reporter_test {
namespace {

using testing::Names;
using testing::TempFolder;

// Standard error of this process in a file, until the object goes.
class CapturedErrors {
 public:
  explicit CapturedErrors(const std::string& path) : path_(path), saved_(::dup(STDERR_FILENO)) {
    const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  CapturedErrors(const CapturedErrors&) = delete;
  CapturedErrors& operator=(const CapturedErrors&) = delete;
  ~CapturedErrors() {
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
  }

 private:
  std::string path_;
  int saved_;
};

constexpr StepEvent kRecord{.step = 7,
                            .loss = 1.2345678901234567,
                            .grad_norm = 0.1 + 0.2,
                            .learning_rate = 3e-4,
                            .tokens = 123'456'789'012,
                            .samples = 56,
                            .tokens_per_second = 12'345.678,
                            .step_seconds = 0.0829,
                            .wait_seconds = 0.001,
                            .mfu = 0.391,
                            .memory_bytes = 50 << 20,
                            .comm_bytes = 4'096};

std::vector<nlohmann::ordered_json> lines_of(const std::string& text) {
  std::vector<nlohmann::ordered_json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(nlohmann::ordered_json::parse(line));
  }
  return lines;
}

struct Reported {
  std::vector<nlohmann::ordered_json> lines;
  std::string errors;
};

/// The first line that holds these words; empty: none does.
std::string line_with(const std::string& text, const std::string& words) {
  const std::size_t found = text.find(words);
  if (found == std::string::npos) return {};
  const std::size_t before = text.rfind('\n', found);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  return text.substr(begin, text.find('\n', found) - begin);
}

template <typename Report>
Reported report(Reporter::Options options, Report tell) {
  const TempFolder folder;
  options.metrics_path = folder.path("metrics.jsonl");
  {
    const CapturedErrors captured(folder.path("errors"));
    Reporter reporter(options);
    tell(reporter);
  }
  std::string metrics;
  if (std::filesystem::exists(options.metrics_path)) metrics = folder.read("metrics.jsonl");
  return {lines_of(metrics), folder.read("errors")};
}

TEST_CASE("A step's line has exactly the documented keys, in order, and every bit of its numbers") {
  const auto found =
      report({.metrics_path = "", .console = {}}, [](Reporter& r) { r.report(kRecord); });
  REQUIRE(found.lines.size() == 1);
  std::vector<std::string> keys;
  for (const auto& [key, value] : found.lines[0].items()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"step", "loss", "grad_norm", "learning_rate", "tokens",
                                         "samples", "tokens_per_second", "step_seconds",
                                         "wait_seconds", "mfu", "memory_bytes", "comm_bytes"});
  CHECK(found.lines[0]["loss"].get<double>() == kRecord.loss);
  CHECK(found.lines[0]["grad_norm"].get<double>() == kRecord.grad_norm);
  CHECK(found.lines[0]["tokens"].get<std::int64_t>() == kRecord.tokens);
  CHECK(found.lines[0]["step_seconds"].get<double>() == kRecord.step_seconds);
}

TEST_CASE("Numbers that JSON lacks are written as words") {
  StepEvent record = kRecord;
  record.loss = -std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = -std::numeric_limits<double>::infinity();
  const auto found = report({.metrics_path = "", .console = {}}, [&](Reporter& r) {
    r.report(record);
    r.report(EvaluationEvent{
        .step = 7, .val_loss = std::numeric_limits<double>::infinity(), .tokens = 64});
  });
  CHECK(found.lines[0]["loss"] == "nan");
  CHECK(found.lines[0]["grad_norm"] == "-inf");
  CHECK(found.lines[1]["val_loss"] == "inf");
}

TEST_CASE("Lines other than steps name their 'event'") {
  const auto found = report({.metrics_path = "", .console = {}, .total_steps = 7}, [](Reporter& r) {
    r.report(StartEvent{"a table", {{"parameters", 5}}});
    r.report(EvaluationEvent{.step = 3, .val_loss = 1.5, .tokens = 640, .data = "d"});
    r.warn(4, "loss nan: update skipped");
    r.report(RunSummary{
        .steps = 7,
        .steps_here = 7,
        .train_loss = MeanLoss{.loss = 2.5, .first_step = 1, .last_step = 7, .num_losses = 6},
        .validation = EvaluationEvent{.step = 7, .val_loss = 1.25},
        .time = {.total = 3},
        .tokens_per_second = 10,
        .model_path = "m",
        .skipped_updates = 3,
        .failed_checkpoints = 2});
  });
  REQUIRE(found.lines.size() == 4);
  CHECK(found.lines[0] == nlohmann::ordered_json{{"event", "start"}, {"parameters", 5}});
  CHECK(found.lines[1] ==
        nlohmann::ordered_json{
            {"event", "eval"}, {"step", 3}, {"val_loss", 1.5}, {"tokens", 640}, {"data", "d"}});
  CHECK(found.lines[2] == nlohmann::ordered_json{{"event", "error"},
                                                 {"step", 4},
                                                 {"message", "loss nan: update skipped"}});
  CHECK(found.lines[3] == nlohmann::ordered_json{{"event", "end"},
                                                 {"step", 7},
                                                 {"train_loss", 2.5},
                                                 {"train_loss_steps", {1, 7}},
                                                 {"seconds", 3.0},
                                                 {"tokens_per_second", 10.0},
                                                 {"model", "m"},
                                                 {"skipped_updates", 3},
                                                 {"failed_checkpoints", 2},
                                                 {"val_loss", 1.25}});
  CHECK(found.errors.find("a table\n") == 0);
  CHECK(found.errors.find("dtrain: warning: loss nan: update skipped\n") != std::string::npos);
  CHECK_THAT(line_with(found.errors, "training loss"), Names("2.5000", "6 finite", "steps 1 to 7"));
  CHECK(found.errors.find("validation loss 1.2500") != std::string::npos);
  CHECK(found.errors.find("updates skipped 3") != std::string::npos);
  CHECK_THAT(line_with(found.errors, "checkpoints"), Names(2));
}

TEST_CASE("A failure is one line, whatever bytes its message has") {
  const auto found = report({.metrics_path = "", .console = {}}, [](Reporter& r) {
    r.report_failure({.step = 3, .message = "a\xff\nb"});
  });
  REQUIRE(found.lines.size() == 1);
  CHECK(found.lines[0]["event"] == "failure");
  CHECK(found.lines[0]["step"] == 3);
  CHECK(found.errors.empty());
}

TEST_CASE("A reporter that does not write drops every event") {
  const auto found = report({.writes = false, .metrics_path = "", .console = {}}, [](Reporter& r) {
    r.report(StartEvent{"a table", {}});
    r.report(kRecord);
    r.report(EvaluationEvent{.step = 1, .val_loss = 2, .tokens = 3});
    r.warn(1, "w");
    r.report(RunSummary{.model_path = ""});
  });
  CHECK(found.lines.empty());
  CHECK(found.errors.empty());
}

std::ptrdiff_t count(const std::string& text, char c) {
  return std::count(text.begin(), text.end(), c);
}

void tell_steps(Reporter& r) {
  StepEvent record = kRecord;
  for (record.step = 1; record.step <= 25; ++record.step) r.report(record);
}

TEST_CASE("Off a terminal the first, every log_every-th and the last step are plain lines") {
  const auto found =
      report({.metrics_path = "", .console = {.live = false}, .log_every = 10, .total_steps = 25},
             tell_steps);
  CHECK(found.lines.size() == 25);
  CHECK(count(found.errors, '\n') == 4);  // 1, 10, 20, 25
  CHECK(count(found.errors, '\r') == 0);
  CHECK(count(found.errors, '\x1b') == 0);
  CHECK(found.errors.find("step 20/25 | loss 1.2346 | grad 0.300 | lr 3.00e-04 | 12.3k tok/s | mfu "
                          "39% | 50.0 MiB | eta 0:00\n") != std::string::npos);
}

TEST_CASE(
    "On a terminal the live line is redrawn, fits its width, and is erased before other lines") {
  const auto found = report({.metrics_path = "",
                             .console = {.live = true, .columns = [] { return 60; }},
                             .log_every = 10,
                             .total_steps = 25},
                            [](Reporter& r) {
                              tell_steps(r);
                              r.warn(25, "w");
                            });
  CHECK(found.errors.find("\r\x1b[Jstep 3/25 loss 1.2346 grad 0.300 12.3k tok/s eta 0:02\r") !=
        std::string::npos);
  CHECK(count(found.errors, '\n') == 5);  // steps 1, 10, 20 and 25, and the warning
  CHECK(found.errors.ends_with("\r\x1b[J\rdtrain: warning: w\n"));
}

TEST_CASE("On a terminal evaluations and checkpoints are lines above the live line") {
  const auto found =
      report({.metrics_path = "",
              .console = {.live = true, .columns = [] { return 79; }},
              .log_every = 10,
              .total_steps = 25},
             [](Reporter& r) {
               r.report(EvaluationBegin{3});
               r.report(EvaluationEvent{.step = 3, .val_loss = 1.5, .tokens = 100});
               r.report(CheckpointEvent{.step = 3, .path = "p", .bytes = 5, .seconds = 0.25});
             });
  CHECK(found.errors.find(
            "step 3/25 | evaluating ...\r\r\x1b[J\rstep 3 | validation loss 1.5000\n") !=
        std::string::npos);
  CHECK_THAT(line_with(found.errors, "checkpoint"),
             Names("step 3", "p", "5 B", "0.2 s", "stall 0 s"));
}

TEST_CASE("A progress line that is too long drops parts in their order, and its dividers") {
  const std::vector<LinePart> parts = {{"step 5", 0}, {"loss 1", 0}, {"lr 2", 4},
                                       {"mfu 3%", 8}, {"4 MiB", 9},  {"eta 6", 0}};
  CHECK(fit_parts(parts, 99) == "step 5 | loss 1 | lr 2 | mfu 3% | 4 MiB | eta 6");
  CHECK(fit_parts(parts, 40) == "step 5 | loss 1 | lr 2 | mfu 3% | eta 6");
  CHECK(fit_parts(parts, 36) == "step 5 | loss 1 | lr 2 | eta 6");
  CHECK(fit_parts(parts, 25) == "step 5 loss 1 lr 2 eta 6");
  CHECK(fit_parts(parts, 20) == "step 5 loss 1 eta 6");
  CHECK(fit_parts(parts, 13) == "step 5 loss 1");
  CHECK(fit_parts(parts, 10) == "step 5");
  CHECK(fit_parts(parts, 3) == "ste");
  CHECK(fit_parts({{"step 5/9", 0, "step 5"}, {"loss 1", 0}}, 13) == "step 5 loss 1");
}

TEST_CASE("With log_every 0 no step is shown, on a terminal or not, but all are recorded") {
  const bool live = GENERATE(true, false);
  const auto found =
      report({.metrics_path = "", .console = {.live = live}, .log_every = 0, .total_steps = 25},
             tell_steps);
  CHECK(found.lines.size() == 25);
  CHECK(found.errors.empty());
}

TEST_CASE("A memory prediction off by more than a tenth and 4 MiB triggers a warning") {
  const auto warns = [](std::int64_t predicted_mib, std::int64_t peak_mib) {
    const auto found = report({.metrics_path = "", .console = {}}, [&](Reporter& r) {
      r.report(MemoryEvent{.step = 3, .predicted = predicted_mib << 20, .peak = peak_mib << 20});
    });
    REQUIRE(found.lines.size() == 1);
    return found.errors.starts_with("dtrain: warning: memory: ");
  };
  CHECK_FALSE(warns(100, 91));
  CHECK(warns(100, 90));
  CHECK(warns(90, 101));
  CHECK_FALSE(warns(2, 6));
  CHECK(warns(2, 7));
}

TEST_CASE("A metrics file that cannot be written is an error naming the file") {
  const std::string message = testing::message_of(base::ErrorKind::data, [] {
    AppendedFile("/proc/no-such-folder/metrics.jsonl", AppendedFile::Start::empty, "lines")
        .write_line({{"event", "start"}});
  });
  CHECK(message.find("/proc/no-such-folder/metrics.jsonl") != std::string::npos);
}

}  // namespace
}  // namespace dtrain::metrics::reporter_test

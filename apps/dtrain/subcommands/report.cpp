// dtrain report: writes a page or a table about runs.
#include <fmt/chrono.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <system_error>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/io/path_kind.h"
#include "dtrain/base/log.h"
#include "dtrain/checkpoint/store/run_lock.h"
#include "dtrain/report/page.h"
#include "dtrain/report/run_record.h"
#include "provenance.h"
#include "ranks.h"
#include "tool.h"

namespace dtrain::app {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

constexpr std::string_view kStandardOutput = "-";

struct ReportOptions {
  std::vector<std::string> runs;
  std::string output;
  std::string csv;
  bool overwrite = false;
};

void add_report_flags(CLI::App& app, ReportOptions& options) {
  app.add_option("FOLDER", options.runs, "a run folder, or a folder whose runs are all included")
      ->required();
  CLI::Option* output =
      app.add_option("-o,--output", options.output,
                     "the page to write; - for standard output (default: FOLDER/report.html, or "
                     "./report.html for several folders)");
  require_value(*output->type_name("FILE.html"), "name a file");
  CLI::Option* csv = app.add_option("--csv", options.csv,
                                    "instead of the page, write the metrics of all steps as "
                                    "comma-separated values; - for standard output");
  require_value(*csv->type_name("FILE")->excludes(output), "name a file");
  app.add_flag("--overwrite", options.overwrite, "replace the file even if it is not a report");
}

bool file_begins_with(const std::string& path, std::string_view mark) {
  std::ifstream file(path, std::ios::binary);
  std::string beginning(mark.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  return beginning == mark;
}

// True for a page that dtrain report has written, even if its runs are gone.
bool is_page_of_ours(const std::string& path) { return file_begins_with(path, report::kPageMark); }

void check_may_write(const std::string& path, bool overwrite) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorKind::usage, "dtrain report: {} is {}: name a file, or - for standard output", path,
         fs::is_directory(status) ? "a folder" : "not a regular file");
  }
  const bool is_ours = is_page_of_ours(path) || file_begins_with(path, report::kCsvMark);
  if (overwrite || !fs::exists(path, error) || is_ours) return;
  fail(ErrorKind::usage,
       "dtrain report: {} exists but is not a report: name another file, or give --overwrite",
       path);
}

void write(const std::string& path, const std::string& text, bool overwrite) {
  if (path == kStandardOutput) {
    print(text);
    return;
  }
  check_may_write(path, overwrite);
  base::AtomicFile file(path, ErrorKind::data);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

// The default path of the page: in the folder, or in the current directory for several folders.
std::string page_path(const ReportOptions& options) {
  constexpr const char* kName = "report.html";
  if (!options.output.empty()) return options.output;
  return options.runs.size() == 1 ? (fs::path(options.runs.front()) / kName).string() : kName;
}

// Expands a folder that is not a run to the runs below it. Lists each run once.
std::vector<std::string> run_folders(const std::vector<std::string>& named) {
  constexpr int kDepth = 5;
  std::vector<std::string> folders;
  std::set<fs::path> known;
  for (const std::string& name : named) {
    std::error_code error;
    const bool is_file = fs::is_regular_file(name, error);  // opening a pipe would block
    if (is_file && named.size() > 1 && is_page_of_ours(name)) continue;  // matched by runs/*
    auto found =
        report::is_run(name) ? std::vector<std::string>() : report::runs_below(name, kDepth);
    if (found.empty()) found = {name};
    for (const std::string& folder : found) {
      const fs::path whole = fs::weakly_canonical(folder, error);
      if (known.insert(error ? fs::path(folder) : whole).second) folders.push_back(folder);
    }
  }
  return folders;
}

// Checks the lock first, so that a run that ends in between is reported as ended, not as dead.
report::RunRecord read_run(const std::string& folder) {
  const std::optional<bool> held = checkpoint::store::is_run_held(folder);
  report::RunRecord run = report::read_run(folder);
  run.is_held = held;
  return run;
}

// Skips folders without a record if there are several: a rejected start may leave such a folder.
std::vector<report::RunRecord> read_runs(const std::vector<std::string>& folders) {
  std::vector<report::RunRecord> runs;
  std::vector<std::string> reasons;
  for (const std::string& folder : folders) {
    try {
      runs.push_back(read_run(folder));
    } catch (const base::Error& error) {
      if (!base::is_folder(folder)) throw;
      reasons.emplace_back(error.what());
    }
  }
  if (runs.empty()) {
    fail(ErrorKind::data, "{}", reasons.empty() ? "no run folder given" : reasons.front());
  }
  for (const std::string& reason : reasons) base::log_warning("skipped: {}", reason);
  report::make_names_unique(runs);
  return runs;
}

int run_report(const ReportOptions& options) {
  require_one_process("report");
  const std::vector<report::RunRecord> runs = read_runs(run_folders(options.runs));
  if (!options.csv.empty()) {
    write(options.csv, report::csv_of(runs), options.overwrite);
    if (options.csv != kStandardOutput) print(fmt::format("{}\n", options.csv));
    return 0;
  }
  const std::string path = page_path(options);
  if (const fs::path folder = fs::path(path).parent_path();
      options.output.empty() && !folder.empty() && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(ErrorKind::data, "{}: {}; name another file with --output FILE.html", path,
         std::strerror(errno));
  }
  const auto now = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  write(path, report::page_of(report::page_data(runs, "dtrain " + version_text(), now)),
        options.overwrite);
  if (path != kStandardOutput) print(fmt::format("{}\n", path));
  return 0;
}

}  // namespace

void add_report(CLI::App& parent, Action& action) {
  add_tool(parent, "report", "report on runs: an HTML page with curves, or a table", action,
           add_report_flags, run_report)
      .footer(
          "The page has a table of the runs, curves of loss, validation loss, gradient norm, "
          "learning rate, speed, waits, memory and communication, the settings that differ, and "
          "each run's layout, machine, starts, checkpoints, warnings and samples. It needs no "
          "network.");
}

}  // namespace dtrain::app

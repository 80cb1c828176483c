// dtrain report: a page, or a table, of what run folders tell.
#include <fmt/chrono.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "commands.h"
#include "dtrain/base/atomic_file.h"
#include "dtrain/base/error.h"
#include "dtrain/base/log.h"
#include "dtrain/report/csv.h"
#include "dtrain/report/page.h"
#include "fitted_text.h"
#include "help.h"
#include "parse_words.h"
#include "provenance.h"

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
  bool help = false;
};

ReportOptions parse(const Arguments& arguments) {
  ReportOptions options;
  CLI::App app;
  app.set_help_flag();
  app.add_flag("-h,--help", options.help);
  app.add_option("runs", options.runs);
  app.add_option("-o,--output", options.output);
  app.add_option("--csv", options.csv);
  app.add_flag("--overwrite", options.overwrite);
  parse_words(app, arguments, "dtrain report", "dtrain report --help");
  if (options.runs.empty() && !options.help) {
    fail(ErrorKind::usage, "dtrain report: name run folders, as in dtrain report runs/book-1");
  }
  if (!options.csv.empty() && !options.output.empty()) {
    fail(ErrorKind::usage,
         "dtrain report: --csv writes a table in place of the page that --output names: give one "
         "of them");
  }
  return options;
}

// True for a file that dtrain report has written, whatever has become of its runs.
bool is_page_of_ours(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string beginning(report::kPageMark.size(), '\0');
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  return beginning == report::kPageMark;
}

void check_may_write(const std::string& path, bool overwrite) {
  std::error_code error;
  if (overwrite || !fs::exists(path, error) || is_page_of_ours(path)) return;
  fail(ErrorKind::usage,
       "dtrain report: {} exists, and is no report: name another file, or give --overwrite", path);
}

void write(const std::string& path, const std::string& text, bool overwrite) {
  if (path == kStandardOutput) return print(text);
  check_may_write(path, overwrite);
  base::AtomicFile file(path, ErrorKind::data);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(now));
}

// One run has its page in its folder; one of several belongs to none.
std::string page_path(const ReportOptions& options) {
  constexpr const char* kName = "report.html";
  if (!options.output.empty()) return options.output;
  return options.runs.size() == 1 ? (fs::path(options.runs.front()) / kName).string() : kName;
}

// A refused start leaves a folder without a record, which runs/* names too.
bool has_record(const std::string& folder) {
  std::error_code error;
  return !fs::is_directory(folder, error) || fs::exists(fs::path(folder) / "metrics.jsonl", error);
}

std::vector<report::RunRecord> read_runs(const std::vector<std::string>& folders) {
  const bool some = std::ranges::any_of(folders, has_record);
  std::vector<report::RunRecord> runs;
  for (const std::string& folder : folders) {
    if (some && !has_record(folder)) {
      base::log_warning("{}: left out: it holds no metrics.jsonl, so no run has begun there",
                        folder);
      continue;
    }
    runs.push_back(report::read_run(folder));
  }
  report::name_apart(runs);
  return runs;
}

}  // namespace

int run_report(const Arguments& arguments) {
  const ReportOptions options = parse(arguments);
  if (options.help) {
    print_help(report_help());
    return 0;
  }
  const std::vector<report::RunRecord> runs = read_runs(options.runs);
  if (!options.csv.empty()) {
    write(options.csv, report::csv_of(runs), options.overwrite);
    return 0;
  }
  const std::string path = page_path(options);
  write(path, report::page_of(report::page_data(runs, "dtrain " + version_text(), now_text())),
        options.overwrite);
  if (path != kStandardOutput) print(fmt::format("{}\n", path));
  return 0;
}

}  // namespace dtrain::app

#include "dtrain/data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/data/text.h"
#include "dtrain/data/tokens/binary_tokens.h"
#include "dtrain/data/tokens/megatron.h"

namespace dtrain::data {
namespace {

namespace fs = std::filesystem;
using base::ErrorKind;
using base::fail;

// Removes Megatron index files, which are read along with their token files.
void remove_indexes(std::vector<std::string>& files) {
  std::set<std::string> indexes;
  for (const std::string& file : files) indexes.insert(index_path_of(file));
  std::erase_if(files, [&](const std::string& file) { return indexes.contains(file); });
}

/// One token file to write.
struct Task {
  std::string output;
  std::vector<std::string> files;
  std::string notes{};  // on the inputs
};

// Rejects JSON files by name, before any file is read.
void check_field(const PrepareOptions& options, const std::vector<std::string>& files) {
  if (!options.field.empty() || options.as_text) return;
  for (const std::string& file : files) check_is_no_json({}, file);
}

std::string wikitext_file(const std::string& folder, std::string_view part) {
  return fmt::format("{}/wiki.{}.raw", folder, part);
}

/// One task for each part of WikiText in the folder.
std::vector<Task> wikitext_tasks(const PrepareOptions& options, const std::string& folder) {
  std::vector<Task> tasks;
  for (const std::string_view part : {"train", "valid", "test"}) {
    const std::string file = wikitext_file(folder, part);
    std::error_code error;
    if (!fs::exists(file, error)) continue;
    tasks.push_back({fmt::format("{}/{}.dtok", options.output, part), {file}});
  }
  if (!tasks.empty()) return tasks;
  fail(ErrorKind::data,
       "folder '{}' holds none of wiki.train.raw, wiki.valid.raw and wiki.test.raw; download them "
       "with scripts/get_wikitext.sh",
       folder);
}

Task one_task(const PrepareOptions& options) {
  InputFiles inputs = list_inputs(options.inputs);
  remove_indexes(inputs.paths);
  const std::string notes = inputs.notes();
  return {options.output, std::move(inputs.paths), notes};
}

bool is_wikitext_folder(const PrepareOptions& options) {
  std::error_code error;
  return options.is_wikitext && options.inputs.size() == 1 &&
         fs::is_directory(options.inputs.front(), error);
}

/// The formats of foreign token files, which must all have one name; empty for texts.
std::vector<BinaryFormat> formats_of(const std::vector<std::string>& files,
                                     const PrepareOptions& options) {
  std::vector<BinaryFormat> formats;
  std::string first;
  for (const std::string& file : files) {
    auto format = binary_format_of(file, {.vocab = options.vocab, .type = options.token_type});
    const std::string name = format ? format->name : "a text";
    if (first.empty()) first = name;
    if (name != first) {
      fail(ErrorKind::usage,
           "'{}' and '{}' have different formats: {} and {}; prepare them separately",
           files.front(), file, first, name);
    }
    if (format) formats.push_back(std::move(*format));
  }
  return formats;
}

/// The beginning of an input, decompressed; empty for standard input.
std::string beginning_of(const std::string& file) {
  if (file == kStandardInput) return {};
  std::string start(std::size_t{1} << 16, '\0');
  start.resize(open_bytes(file, {})->read(start));
  return start;
}

void refuse_text_options(const PrepareOptions& options, const BinaryFormat& format,
                         const std::string& file) {
  const std::string_view given = options.tokenizer != nullptr ? "--tokenizer"
                                 : options.is_wikitext        ? "--dataset"
                                 : !options.field.empty()     ? "--field"
                                 : options.as_text            ? "--as-text"
                                                              : "";
  if (given.empty()) return;
  fail(ErrorKind::usage, "'{}' holds tokens of {}, but {} applies only to texts; leave it out",
       file, format.name, given);
}

/// Reports progress over all files of all tasks.
class Progress {
 public:
  Progress(const PrepareOptions& options, const std::vector<Task>& tasks) : options_(options) {
    for (const Task& task : tasks) total_ += total_bytes(task.files);
  }
  void report(std::int64_t bytes, const TokenWriter& writer) const {
    if (options_.on_progress) {
      options_.on_progress({.bytes = before_ + bytes,
                            .total_bytes = total_,
                            .num_tokens = tokens_before_ + writer.num_tokens()});
    }
  }
  void finish_files(const std::vector<std::string>& files, std::int64_t num_tokens) {
    before_ += total_bytes(files);
    tokens_before_ += num_tokens;
  }

 private:
  const PrepareOptions& options_;
  std::int64_t total_ = 0;
  std::int64_t before_ = 0;
  std::int64_t tokens_before_ = 0;
};

std::unique_ptr<TokenWriter> convert(const PrepareOptions& options, const Task& task,
                                     const std::vector<BinaryFormat>& formats, Progress& progress,
                                     PrepareReport& report) {
  const BinaryFormat& format = formats.front();
  refuse_text_options(options, format, task.files.front());
  const std::int64_t vocab = options.vocab > 0 ? options.vocab : format.vocab;
  if (vocab == 0) {
    fail(ErrorKind::usage,
         "'{}' holds tokens of {}, a format that does not record the vocabulary; give --vocab N",
         task.files.front(), format.name);
  }
  auto writer = std::make_unique<TokenWriter>(task.output, TokenWriter::Origin{.vocab = vocab});
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const std::string& file = task.files[i];
    const std::int64_t highest =
        convert_binary(file, formats[i], vocab, *writer,
                       [&](std::int64_t bytes) { progress.report(bytes, *writer); });
    report.highest_token = std::max(report.highest_token, highest);
    progress.finish_files({file}, 0);
  }
  if (options.vocab == 0) {
    report.assumed_from = format.name;
    report.assumed_vocab = vocab;
  }
  return writer;
}

std::unique_ptr<TokenWriter> encode(const PrepareOptions& options, const Task& task,
                                    Progress& progress, PrepareReport& report) {
  if (options.token_type) {  // for files, formats_of has consumed it
    fail(ErrorKind::usage,
         "--token-type is for files, but '{}' is standard input, which is read as text; write it "
         "to a file first",
         task.files.front());
  }
  if (options.vocab > 0) {
    check_is_text(beginning_of(task.files.front()), task.files.front());
    fail(ErrorKind::usage,
         "--vocab is for token files of other trainers, but '{}' is a text; leave it out",
         task.files.front());
  }
  check_field(options, task.files);
  const auto tokenizer = options.tokenizer ? options.tokenizer : byte_tokenizer();
  auto writer =
      std::make_unique<TokenWriter>(task.output, TokenWriter::Origin{.tokenizer = tokenizer->kind(),
                                                                     .vocab = tokenizer->vocab(),
                                                                     .model = tokenizer->model()});
  report.records = write_tokens_of(task.files, options, *tokenizer, *writer,
                                   [&](std::int64_t bytes) { progress.report(bytes, *writer); });
  progress.finish_files(task.files, writer->num_tokens());
  return writer;
}

[[noreturn]] void refuse_empty(const Task& task) {
  const std::string more =
      task.files.size() == 1 ? "" : fmt::format(" and {} more", task.files.size() - 1);
  fail(ErrorKind::data, "'{}' would hold no tokens: there are none in '{}'{}; give other inputs",
       task.output, task.files.front(), more);
}

/// Creates the output folder if needed, and removes it again if it stays empty.
class OutputFolder {
 public:
  OutputFolder(const PrepareOptions& options, bool is_needed) : path_(options.output) {
    std::error_code error;  // not set if the folder exists
    is_new_ = is_needed && fs::create_directory(path_, error);
    if (!error) return;
    fail(ErrorKind::data, "output folder '{}' cannot be created: {}; name another", path_,
         error.message());
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    std::error_code ignored;  // set if the folder is not empty
    if (is_new_) fs::remove(path_, ignored);
  }

 private:
  std::string path_;
  bool is_new_ = false;
};

}  // namespace

std::vector<PrepareReport> prepare(const PrepareOptions& options) {
  const std::vector<Task> tasks = is_wikitext_folder(options)
                                      ? wikitext_tasks(options, options.inputs.front())
                                      : std::vector<Task>{one_task(options)};
  for (const Task& task : tasks) check_output(options, task.output, task.files);
  const OutputFolder folder(options, tasks.front().output != options.output);
  Progress progress(options, tasks);
  std::vector<std::unique_ptr<TokenWriter>> writers;
  std::vector<PrepareReport> reports;
  for (const Task& task : tasks) {
    const std::vector<BinaryFormat> formats = formats_of(task.files, options);
    PrepareReport& report = reports.emplace_back();
    writers.push_back(formats.empty() ? encode(options, task, progress, report)
                                      : convert(options, task, formats, progress, report));
    if (writers.back()->num_tokens() == 0) refuse_empty(task);
    writers.back()->finish();
    report.output = task.output;
    report.notes = task.notes;
    report.num_files = std::ssize(task.files);
    report.num_tokens = writers.back()->num_tokens();
    report.num_documents = writers.back()->num_documents();
  }
  for (const auto& writer : writers) writer->commit();
  return reports;
}

void check_output(const PrepareOptions& options, const std::string& output,
                  const std::vector<std::string>& files) {
  std::error_code error;
  if (!fs::exists(output, error)) return;
  if (fs::is_directory(output, error)) {
    fail(ErrorKind::usage, "output '{}' is a directory; name a file", output);
  }
  if (!options.overwrite) {
    fail(ErrorKind::usage, "output '{}' exists; name another file or give --overwrite", output);
  }
  for (const std::string& file : files) {
    if (fs::equivalent(file, output, error)) {
      fail(ErrorKind::usage, "output '{}' is one of the inputs; name another file", output);
    }
  }
}

InputFiles training_texts(const PrepareOptions& options) {
  if (!is_wikitext_folder(options)) return list_inputs(options.inputs);
  return {.paths = {wikitext_file(options.inputs.front(), "train")}};
}

RecordReport read_texts(const std::vector<std::string>& files, const PrepareOptions& options,
                        const std::function<void(std::string_view)>& visit) {
  check_field(options, files);
  BlockOptions by_lines = block_options(files, options, *byte_tokenizer());
  by_lines.cut = [](std::string_view text) { return text.rfind('\n') + 1; };
  BlockReader reader(by_lines);
  const DocumentOptions rule{.field = options.field,
                             .skips_bad_records = options.skips_bad_records};
  const std::int64_t total = total_bytes(files);
  RecordReport records;
  Block block;
  while (reader.next(block)) {
    check_utf8(block);
    std::string storage;
    for (const TextSpan& part : text_spans(block, rule, storage, records)) visit(part.text);
    records.check_field_exists(false);
    if (options.on_progress)
      options.on_progress({.bytes = reader.consumed(), .total_bytes = total});
  }
  if (options.on_progress) {  // the total is known only now if standard input was read
    options.on_progress({.bytes = reader.consumed(), .total_bytes = reader.consumed()});
  }
  records.check_field_exists(true);
  return records;
}

}  // namespace dtrain::data

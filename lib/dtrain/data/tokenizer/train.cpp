// `dtrain data tokenizer train`: trains a SentencePiece model on texts.
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/io/file_system.h"
#include "dtrain/base/text/text.h"
#include "dtrain/data/prepare.h"
#include "dtrain/data/tokenizer/sentencepiece_library.h"
#include "dtrain/data/tokenizer/utf8.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;
using base::fail;

/// An evenly spaced sample of lines in bounded memory: every n-th line, where n doubles whenever
/// the sample grows too large.
class LineSample {
 public:
  void add(std::string_view text) {
    num_bytes_ += std::ssize(text);
    while (!text.empty()) {
      const std::string_view line = text.substr(0, length_of_line(text));
      text.remove_prefix(line.size());
      if (text.starts_with('\n')) text.remove_prefix(1);
      if (!line.empty()) add_line(line);
    }
  }

  [[nodiscard]] bool next(std::string& line) {
    if (next_ == lines_.size()) return false;
    line = lines_[next_++];
    return true;
  }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }
  [[nodiscard]] std::int64_t num_used_bytes() const {
    return step_ == 1 ? num_bytes_ : used_bytes_;
  }
  [[nodiscard]] bool is_empty() const { return lines_.empty(); }

 private:
  static constexpr std::int64_t kMostBytes = 100'000'000;
  // SentencePiece skips lines longer than 4,192 bytes.
  static constexpr std::size_t kLongestLine = 4096;

  static std::size_t length_of_line(std::string_view text) {
    const std::string_view start = text.substr(0, kLongestLine);
    if (const auto newline = start.find('\n'); newline != start.npos) return newline;
    if (start.size() < kLongestLine) return start.size();
    const auto space = start.rfind(' ');
    return space != start.npos && space > 0 ? space : whole_characters(start);
  }

  void add_line(std::string_view line) {
    if (count_++ % step_ != 0) return;
    lines_.emplace_back(line);
    used_bytes_ += std::ssize(line);
    while (used_bytes_ > kMostBytes && lines_.size() > 1) keep_every_second();
  }

  void keep_every_second() {
    used_bytes_ = 0;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < lines_.size(); i += 2) {
      lines_[kept].swap(lines_[i]);
      used_bytes_ += std::ssize(lines_[kept++]);
    }
    lines_.resize(kept);
    step_ *= 2;
  }

  std::vector<std::string> lines_;
  std::int64_t num_bytes_ = 0;
  std::int64_t used_bytes_ = 0;
  std::int64_t count_ = 0;
  std::int64_t step_ = 1;
  std::size_t next_ = 0;
};

// Detects an unwritable output before minutes of training.
void check_writable(const PrepareOptions& options, const std::vector<std::string>& files) {
  check_output(options, options.output, files);
  const base::AtomicFile probe(options.output, ErrorKind::data);
}

SentencePieceLibrary::TrainerFlags trainer_flags(const TokenizerTraining& training) {
  return {{"vocab_size", std::to_string(training.vocab)},
          {"model_type", training.type},
          {"byte_fallback", "true"},
          {"normalization_rule_name", "identity"},
          {"remove_extra_whitespaces", "false"},
          {"add_dummy_prefix", "false"},
          {"allow_whitespace_only_pieces", "true"},
          {"unk_id", "0"},
          {"eos_id", "1"},
          {"bos_id", "-1"},
          {"pad_id", "-1"},
          {"num_threads", "16"},  // fixed, because sums depend on it
          {"minloglevel", "2"}};
}

// Returns the text after the brackets of an error such as
// "INTERNAL: src/trainer_interface.cc(582) [(a) <= (b)] Vocabulary size too high (900). ...".
std::string without_source(const std::string& error) {
  const auto bracket = error.rfind("] ");
  const std::string reason = bracket == error.npos ? error : error.substr(bracket + 2);
  // SentencePiece's advice names its own options.
  std::int64_t least = 0;
  constexpr const char* kTooSmall =
      "Vocabulary size is smaller than required_chars. %*d vs %" SCNd64;
  if (std::sscanf(reason.c_str(), kTooSmall, &least) == 1) {
    return fmt::format("their characters alone need {} pieces", least);
  }
  return base::printable(reason);
}

}  // namespace

TokenizerReport train_tokenizer(const TokenizerTraining& training) {
  const InputFiles files = training_texts(training.texts);
  check_writable(training.texts, files.paths);
  SentencePieceLibrary& library = sentencepiece_library();
  LineSample lines;
  RecordReport records =
      read_texts(files.paths, training.texts, [&](std::string_view text) { lines.add(text); });
  if (lines.is_empty()) {
    fail(ErrorKind::data, "all lines of the texts are empty; give more text");
  }
  std::string error;
  const std::string model = library.train(
      trainer_flags(training), [&](std::string& line) { return lines.next(line); }, error);
  if (model.empty()) {
    fail(ErrorKind::usage, "SentencePiece cannot train on these texts with --vocab-size {}: {}",
         training.vocab, without_source(error));
  }
  const auto tokenizer = open_tokenizer(model, training.texts.output);
  base::AtomicFile output(training.texts.output, ErrorKind::data);
  output.write(std::as_bytes(std::span(model)));
  output.commit();
  return {.vocab = tokenizer->vocab(),
          .num_bytes = lines.num_bytes(),
          .num_used_bytes = lines.num_used_bytes(),
          .notes = files.notes(),
          .records = std::move(records)};
}

}  // namespace dtrain::data

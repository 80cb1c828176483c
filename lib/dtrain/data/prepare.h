// `dtrain data prepare` writes token files from texts; `dtrain data tokenizer train` trains a
// SentencePiece model on texts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/data/source/blocks.h"
#include "dtrain/data/source/input_files.h"
#include "dtrain/data/tokenizer/tokenizer.h"
#include "dtrain/data/tokens/number_type.h"
#include "dtrain/data/tokens/token_writer.h"

namespace dtrain::data {

/// Progress of `data prepare`.
struct PrepareProgress {
  std::int64_t bytes = 0;        ///< read so far, as stored on disk
  std::int64_t total_bytes = 0;  ///< in all files; 0: unknown
  std::int64_t num_tokens = 0;
};

struct PrepareOptions {
  /// Files and folders, as list_inputs takes them.
  std::vector<std::string> inputs{};
  std::string output{};    ///< the token file, or a folder if the input is a WikiText folder
  bool overwrite = false;  ///< replace an existing output
  std::string field{};     ///< JSON field with the text, as in field_text; empty: no JSON
  bool skips_bad_records = false;  ///< skip bad JSON records; otherwise they are errors
  bool as_text = false;            ///< read JSON as plain text
  bool is_wikitext = false;
  std::shared_ptr<const Tokenizer> tokenizer{};  ///< null: bytes
  std::int64_t vocab = 0;  ///< vocabulary of foreign tokens; 0: the format's usual one
  std::optional<NumberType> token_type{};  ///< type in token files without a header
  std::int64_t threads = 1;
  std::function<void(const PrepareProgress&)> on_progress{};
  /// Called while waiting for standard input; may throw to cancel the wait. May be empty.
  std::function<void()> check_stop{};
};

struct PrepareReport {
  std::string output{};
  std::int64_t num_files = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_documents = 0;
  std::string notes{};     ///< skipped folder entries: InputFiles::notes
  RecordReport records{};  ///< JSON inputs only
  /// Set for foreign tokens without --vocab: the trainer that wrote them, its usual vocabulary,
  /// which was assumed, and the highest token found.
  std::string assumed_from{};
  std::int64_t assumed_vocab = 0;
  std::int64_t highest_token = -1;
};

/// Writes one token file with the tokens of all inputs in order; for a WikiText folder, a folder
/// with train.dtok, valid.dtok and test.dtok. The outputs appear only when all are complete. Their
/// bytes do not depend on the number of threads, and memory does not grow with the inputs.
/// Token files of other trainers (binary_tokens.h) are converted. With several texts and a
/// tokenizer without an end-of-document token, other than a tokenizer.json, each text gets a final
/// newline if it lacks one.
///
/// Throws: Error{data} naming the file and position of an input that is missing, not text, damaged
///         or in conflict with the options, or an output that cannot be written; Error{usage} if
///         there is no input, or an output exists and overwrite is off.
std::vector<PrepareReport> prepare(const PrepareOptions& options);

/// Rejects an unusable output path.
///
/// Throws: Error{usage} if the output is a folder or one of the files, or exists and overwrite is
///         off.
void check_output(const PrepareOptions& options, const std::string& output,
                  const std::vector<std::string>& files);

/// Lists the files to train a tokenizer on: all inputs, or only the training part of a WikiText
/// folder.
///
/// Throws: as prepare.
[[nodiscard]] InputFiles training_texts(const PrepareOptions& options);

/// Reads files of the options' format and calls visit(text) for each consecutive part of a
/// document, in order. Returns statistics on JSON records.
///
/// Throws: as prepare.
RecordReport read_texts(const std::vector<std::string>& files, const PrepareOptions& options,
                        const std::function<void(std::string_view)>& visit);

/// Called after each block with the number of file bytes read so far.
using OnBytes = std::function<void(std::int64_t)>;

/// Writes the tokens of all files and returns statistics on JSON records. options: as for prepare;
/// their inputs and output are ignored.
///
/// Throws: Error{data} as prepare.
RecordReport write_tokens_of(const std::vector<std::string>& files, const PrepareOptions& options,
                             const Tokenizer& tokenizer, TokenWriter& writer,
                             const OnBytes& on_bytes);

/// Returns the block reader's options for these files.
[[nodiscard]] BlockOptions block_options(const std::vector<std::string>& files,
                                         const PrepareOptions& options, const Tokenizer& tokenizer);

struct TokenizerTraining {
  /// Inputs and how to read them; a WikiText folder contributes only its training part. `output` is
  /// the model file.
  PrepareOptions texts{};
  std::int64_t vocab = 0;    ///< number of pieces, including the 256 byte pieces
  std::string type = "bpe";  ///< "bpe" or "unigram"
};

struct TokenizerReport {
  std::int64_t vocab = 0;
  std::int64_t num_bytes = 0;       ///< in the text
  std::int64_t num_used_bytes = 0;  ///< in the sampled lines; num_bytes without sampling
  std::string notes{};              ///< as in PrepareReport
  RecordReport records{};
};

/// Trains a lossless model: no normalization, spaces and newlines kept, byte fallback for unknown
/// characters, and an end-of-document token. Texts of more than 100 MB are reduced to an evenly
/// spaced sample of their lines. The same texts give the same model on every machine.
///
/// Throws: Error{usage} if SentencePiece rejects the request (for example a vocabulary too large
///         for the text); Error{data} as prepare.
TokenizerReport train_tokenizer(const TokenizerTraining& training);

}  // namespace dtrain::data

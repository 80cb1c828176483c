// `dtrain data prepare`: texts to token files. `dtrain data tokenizer train`: a SentencePiece model
// of texts.
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

/// How far a preparation has come.
struct PrepareProgress {
  std::int64_t bytes = 0;        ///< of the files, as they lie on the disk, that were read
  std::int64_t total_bytes = 0;  ///< of all files; 0: unknown
  std::int64_t num_tokens = 0;
};

struct PrepareOptions {
  /// Files, and folders, read as list_inputs reads them.
  std::vector<std::string> inputs{};
  std::string output{};            ///< the token file; of a folder of WikiText, a folder
  bool overwrite = false;          ///< replace an existing output
  std::string field{};             ///< of JSON, as field_text takes it; empty: the inputs are none
  bool skips_bad_records = false;  ///< of JSON, which end the preparation otherwise
  bool as_text = false;            ///< read JSON as plain text
  bool is_wikitext = false;
  std::shared_ptr<const Tokenizer> tokenizer{};  ///< null: bytes
  std::int64_t vocab = 0;                        ///< of tokens that come without theirs; 0: usual
  std::optional<NumberType> token_type{};        ///< of tokens without a header
  std::int64_t threads = 1;
  std::function<void(const PrepareProgress&)> on_progress{};
  std::function<void()> check_stop{};  ///< throws to end the wait for standard input; may be empty
};

struct PrepareReport {
  std::string output{};
  std::int64_t num_files = 0;
  std::int64_t num_tokens = 0;
  std::int64_t num_documents = 0;
  std::string notes{};     ///< what folders held besides: InputFiles::notes
  RecordReport records{};  ///< of JSON
  /// Of tokens whose vocabulary nobody gave: the trainer whose usual one was taken, that one, and
  /// the highest token. Empty for others.
  std::string assumed_from{};
  std::int64_t assumed_vocab = 0;
  std::int64_t highest_token = -1;
};

/// Writes the tokens of all inputs, one after the other, as a token file; of a folder of WikiText,
/// train.dtok, valid.dtok and test.dtok into a folder. All outputs appear whole or none does. They
/// have the same bytes with any number of threads, and what is in memory does not grow with the
/// inputs. Token files of other trainers (binary_tokens.h) are converted. Of several texts each
/// ends with a newline under a tokenizer of bytes, which has no other sign for a document's end;
/// one is added where it is missing.
///
/// Throws: Error{data} naming the file, and the place in it, that is missing, no text, damaged, not
///         what the options say, or cannot be written; Error{usage} if nothing is to be read or an
///         output exists and overwrite is off.
std::vector<PrepareReport> prepare(const PrepareOptions& options);

/// Throws: Error{usage} if the output is a folder or among the files, or exists and overwrite is
///         off.
void check_output(const PrepareOptions& options, const std::string& output,
                  const std::vector<std::string>& files);

/// The files that a tokenizer is trained on: all inputs, and of a folder of WikiText the training
/// part alone.
///
/// Throws: as prepare.
[[nodiscard]] InputFiles training_texts(const PrepareOptions& options);

/// Reads the files, which are of the options' format, and calls visit(text) for each stretch of a
/// document, in order. Returns what records of JSON held.
///
/// Throws: as prepare.
RecordReport read_texts(const std::vector<std::string>& files, const PrepareOptions& options,
                        const std::function<void(std::string_view)>& visit);

/// Called with the bytes of files read so far, after each block.
using OnBytes = std::function<void(std::int64_t)>;

/// Writes the tokens of all files, and returns what records of JSON held. options: what prepare was
/// asked; its inputs and output are not read.
///
/// Throws: Error{data} as prepare.
RecordReport write_tokens_of(const std::vector<std::string>& files, const PrepareOptions& options,
                             const Tokenizer& tokenizer, TokenWriter& writer,
                             const OnBytes& on_bytes);

/// How prepare reads files with these options.
[[nodiscard]] BlockOptions block_options(const std::vector<std::string>& files,
                                         const PrepareOptions& options, const Tokenizer& tokenizer);

struct TokenizerTraining {
  /// Inputs (of a folder of WikiText the training part is read) and how to read them; output: the
  /// model's file.
  PrepareOptions texts{};
  std::int64_t vocab = 0;    ///< pieces, those of the 256 bytes included
  std::string type = "bpe";  ///< or unigram
};

struct TokenizerReport {
  std::int64_t vocab = 0;
  std::int64_t num_bytes = 0;       ///< of the text
  std::int64_t num_used_bytes = 0;  ///< all of them, or those of the lines in the sample
  std::string notes{};              ///< as those of PrepareReport
  RecordReport records{};
};

/// Trains a model that gives back every text as it was: no normalizing, spaces and lines kept,
/// unknown characters as bytes, and a token that ends documents. Of more than 100 MB of text it
/// takes lines that are spread evenly. The same texts give the same model on every machine.
///
/// Throws: Error{usage} naming what SentencePiece refuses (a vocabulary too large for the text);
///         Error{data} as prepare.
TokenizerReport train_tokenizer(const TokenizerTraining& training);

}  // namespace dtrain::data

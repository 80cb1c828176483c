// `dtrain data tokenizer train`: a SentencePiece model of texts.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/data/prepare.h"

namespace dtrain::data {

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
};

/// Trains a model that gives back every text as it was: no normalizing, spaces and lines kept,
/// unknown characters as bytes, and a token that ends documents. Of more than 100 MB of text it
/// takes lines that are spread evenly. The same texts give the same model on every machine.
///
/// Throws: Error{usage} naming what SentencePiece refuses (a vocabulary too large for the text);
///         Error{data} as prepare.
TokenizerReport train_tokenizer(const TokenizerTraining& training);

}  // namespace dtrain::data

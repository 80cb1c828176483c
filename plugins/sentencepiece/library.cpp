// SentencePiece behind dtrain/data/tokenizer/piece_library.h, and nothing else.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <utility>
#include <vector>

#include "dtrain/data/tokenizer/piece_library.h"

namespace dtrain::sentencepiece_plugin {
namespace {

namespace sp = ::sentencepiece;

bool succeeds(const sp::util::Status& status, std::string& obstacle) {
  if (!status.ok()) obstacle = status.message();
  return status.ok();
}

class Model final : public data::PieceModel {
 public:
  [[nodiscard]] bool load(std::string_view model, std::string& obstacle) {
    return succeeds(processor_.LoadFromSerializedProto({model.data(), model.size()}), obstacle);
  }

  [[nodiscard]] int size() const override { return processor_.GetPieceSize(); }
  // The library does not tell the type of a model, and gives several readings with this one alone.
  [[nodiscard]] bool is_unigram() const override {
    std::vector<std::vector<int>> readings;
    return processor_.NBestEncode("a", 1, &readings).ok();
  }
  [[nodiscard]] std::string piece(int id) const override { return processor_.IdToPiece(id); }
  [[nodiscard]] int end_id() const override { return processor_.eos_id(); }
  [[nodiscard]] Kind kind(int id) const override {
    if (processor_.IsUnknown(id)) return Kind::unknown;
    if (processor_.IsControl(id)) return Kind::control;
    if (processor_.IsByte(id)) return Kind::byte;
    return processor_.IsUnused(id) ? Kind::unused : Kind::normal;
  }
  [[nodiscard]] bool encode(std::string_view text, std::vector<int>& ids,
                            std::string& obstacle) const override {
    return succeeds(processor_.Encode({text.data(), text.size()}, &ids), obstacle);
  }

 private:
  sp::SentencePieceProcessor processor_;
};

class Sentences final : public sp::SentenceIterator {
 public:
  explicit Sentences(const data::PieceLibrary::NextSentence& next) : next_(next) { Next(); }
  [[nodiscard]] bool done() const override { return !is_there_; }
  void Next() override { is_there_ = next_(value_); }
  [[nodiscard]] const std::string& value() const override { return value_; }
  [[nodiscard]] sp::util::Status status() const override { return {}; }

 private:
  const data::PieceLibrary::NextSentence& next_;
  std::string value_;
  bool is_there_ = false;
};

class Library final : public data::PieceLibrary {
 public:
  std::unique_ptr<data::PieceModel> load(std::string_view model, std::string& obstacle) override {
    auto loaded = std::make_unique<Model>();
    return loaded->load(model, obstacle) ? std::move(loaded) : nullptr;
  }

  std::string train(const Words& words, const NextSentence& next, std::string& obstacle) override {
    Sentences sentences(next);
    std::string model;
    const auto status = sp::SentencePieceTrainer::Train(words, &sentences, &model);
    return succeeds(status, obstacle) ? model : std::string();
  }
};

}  // namespace
}  // namespace dtrain::sentencepiece_plugin

__attribute__((visibility("default"))) dtrain::data::PieceLibrary& dtrain_piece_library() {
  static dtrain::sentencepiece_plugin::Library library;
  return library;
}

// Implements dtrain/data/tokenizer/sentencepiece_library.h with SentencePiece.
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include <utility>
#include <vector>

#include "dtrain/data/tokenizer/sentencepiece_library.h"

namespace dtrain::sentencepiece_plugin {
namespace {

namespace sp = ::sentencepiece;

bool succeeds(const sp::util::Status& status, std::string& error) {
  if (!status.ok()) error = status.message();
  return status.ok();
}

class Model final : public data::SentencePieceModel {
 public:
  [[nodiscard]] bool load(std::string_view model, std::string& error) {
    return succeeds(processor_.LoadFromSerializedProto({model.data(), model.size()}), error);
  }

  [[nodiscard]] int size() const override { return processor_.GetPieceSize(); }
  // SentencePiece does not expose the model type; only unigram models support n-best encoding.
  [[nodiscard]] bool is_unigram() const override {
    std::vector<std::vector<int>> segmentations;
    return processor_.NBestEncode("a", 1, &segmentations).ok();
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
                            std::string& error) const override {
    return succeeds(processor_.Encode({text.data(), text.size()}, &ids), error);
  }

 private:
  sp::SentencePieceProcessor processor_;
};

class Sentences final : public sp::SentenceIterator {
 public:
  explicit Sentences(const data::SentencePieceLibrary::NextSentence& next) : next_(next) { Next(); }
  [[nodiscard]] bool done() const override { return !has_value_; }
  void Next() override { has_value_ = next_(value_); }
  [[nodiscard]] const std::string& value() const override { return value_; }
  [[nodiscard]] sp::util::Status status() const override { return {}; }

 private:
  const data::SentencePieceLibrary::NextSentence& next_;
  std::string value_;
  bool has_value_ = false;
};

class Library final : public data::SentencePieceLibrary {
 public:
  std::unique_ptr<data::SentencePieceModel> load(std::string_view model,
                                                 std::string& error) override {
    auto loaded = std::make_unique<Model>();
    return loaded->load(model, error) ? std::move(loaded) : nullptr;
  }

  std::string train(const TrainerFlags& flags, const NextSentence& next,
                    std::string& error) override {
    Sentences sentences(next);
    std::string model;
    const auto status = sp::SentencePieceTrainer::Train(flags, &sentences, &model);
    return succeeds(status, error) ? model : std::string();
  }
};

}  // namespace
}  // namespace dtrain::sentencepiece_plugin

__attribute__((visibility("default"))) dtrain::data::SentencePieceLibrary&
dtrain_sentencepiece_library() {
  static dtrain::sentencepiece_plugin::Library library;
  return library;
}

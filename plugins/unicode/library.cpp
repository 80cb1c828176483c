// Implements dtrain/data/tokenizer/hugging_face/unicode_library.h with PCRE2 and ICU.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unicode/bytestream.h>
#include <unicode/edits.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "dtrain/data/tokenizer/hugging_face/unicode_library.h"

namespace dtrain::unicode_plugin {
namespace {

using data::ByteRange;
using data::Replacement;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Code = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

template <typename T>
T* allocated(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

const PCRE2_UCHAR8* bytes_of(std::string_view text) {
  return reinterpret_cast<const PCRE2_UCHAR8*>(text.data());
}

class Scanner final : public data::PatternScanner {
 public:
  Scanner(const pcre2_code* code, bool is_native)
      : code_(code),
        is_native_(is_native),
        match_(allocated(pcre2_match_data_create(1, nullptr))),
        context_(allocated(pcre2_match_context_create(nullptr))),
        stack_(pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr)) {
    pcre2_set_match_limit(context_.get(), kMostSteps);
    pcre2_set_heap_limit(context_.get(), kMostHeapKib);
    pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
  }

  [[nodiscard]] Outcome find(std::string_view text, std::size_t from, bool may_continue,
                             ByteRange& match) override {
    const std::uint32_t partial = may_continue ? PCRE2_PARTIAL_HARD : 0;
    const int result =
        is_native_ ? pcre2_jit_match(code_, bytes_of(text), text.size(), from, partial,
                                     match_.get(), context_.get())
                   : pcre2_match(code_, bytes_of(text), text.size(), from,
                                 PCRE2_NO_UTF_CHECK | partial, match_.get(), context_.get());
    if (result == PCRE2_ERROR_NOMATCH) return Outcome::no_match;
    if (result == PCRE2_ERROR_PARTIAL) return Outcome::undecided;
    if (result < 0) return Outcome::failed;
    const PCRE2_SIZE* const found = pcre2_get_ovector_pointer(match_.get());
    match = {.begin = found[0], .end = found[1]};
    return Outcome::match;
  }

 private:
  static constexpr std::size_t kFirstStack = std::size_t{32} << 10;   // bytes
  static constexpr std::size_t kLargestStack = std::size_t{8} << 20;  // bytes
  static constexpr std::uint32_t kMostSteps = 100'000'000;
  static constexpr std::uint32_t kMostHeapKib = 64 << 10;

  const pcre2_code* code_;
  bool is_native_;
  MatchData match_;
  MatchContext context_;
  JitStack stack_;
};

class CompiledPattern final : public data::Pattern {
 public:
  // Where no memory may be executable, PCRE2 interprets the pattern.
  explicit CompiledPattern(Code code)
      : code_(std::move(code)),
        is_native_(pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) ==
                   0) {}
  [[nodiscard]] std::unique_ptr<data::PatternScanner> make_scanner() const override {
    return std::make_unique<Scanner>(code_.get(), is_native_);
  }

 private:
  Code code_;
  bool is_native_;
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR8, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

/// NFC of Unicode 9: characters that later versions added are outside the filter.
class Nfc {
 public:
  Nfc() {
    known_.applyPattern("[:Age=9.0:]", status_).freeze();
    const icu::Normalizer2* const whole = icu::Normalizer2::getNFCInstance(status_);
    if (U_SUCCESS(status_)) nfc_ = std::make_unique<icu::FilteredNormalizer2>(*whole, known_);
  }
  [[nodiscard]] const icu::FilteredNormalizer2& get() const {
    if (nfc_ == nullptr) throw std::bad_alloc();  // ICU fails here only without memory
    return *nfc_;
  }

 private:
  UErrorCode status_ = U_ZERO_ERROR;
  icu::UnicodeSet known_;
  std::unique_ptr<icu::FilteredNormalizer2> nfc_;
};

const icu::FilteredNormalizer2& nfc() {
  static const Nfc instance;
  return instance.get();
}

void list_changes(const icu::Edits& edits, std::vector<Replacement>& changes) {
  UErrorCode status = U_ZERO_ERROR;
  auto edit = edits.getCoarseChangesIterator();
  const auto range = [](std::int32_t begin, std::int32_t length) {
    return ByteRange{static_cast<std::size_t>(begin), static_cast<std::size_t>(begin + length)};
  };
  while (edit.next(status)) {
    changes.push_back({range(edit.sourceIndex(), edit.oldLength()),
                       range(edit.destinationIndex(), edit.newLength())});
  }
}

class Library final : public data::UnicodeLibrary {
 public:
  [[nodiscard]] std::unique_ptr<data::Pattern> compile(std::string_view pattern,
                                                       std::string& error) const override {
    const CompileContext context(allocated(pcre2_compile_context_create(nullptr)));
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    int reason = 0;
    PCRE2_SIZE at = 0;
    constexpr std::uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE;
    Code code(
        pcre2_compile(bytes_of(pattern), pattern.size(), kOptions, &reason, &at, context.get()));
    if (code == nullptr) {
      error = message_of(reason);
      return nullptr;
    }
    return std::make_unique<CompiledPattern>(std::move(code));
  }

  [[nodiscard]] bool normalize(std::string_view text, std::string& normalized,
                               std::vector<Replacement>* changes) const override {
    // U+0300, the first character that may change a text, is CC 80.
    constexpr unsigned char kFirst = 0xCC;
    if (std::ranges::none_of(text, [](char c) { return static_cast<unsigned char>(c) >= kFirst; }))
      return false;
    UErrorCode status = U_ZERO_ERROR;
    const icu::StringPiece source(text.data(), static_cast<std::int32_t>(text.size()));
    const bool is_normal = nfc().isNormalizedUTF8(source, status) != 0;
    if (is_normal && U_SUCCESS(status)) return false;
    normalized.clear();
    icu::StringByteSink<std::string> sink(&normalized);
    icu::Edits edits;
    nfc().normalizeUTF8(0, source, sink, changes == nullptr ? nullptr : &edits, status);
    if (U_FAILURE(status)) throw std::bad_alloc();  // the only failure on valid UTF-8
    if (changes != nullptr) list_changes(edits, *changes);
    return true;
  }

  [[nodiscard]] bool begins_segment(char32_t character) const override {
    return nfc().hasBoundaryBefore(static_cast<UChar32>(character)) != 0;
  }
};

}  // namespace
}  // namespace dtrain::unicode_plugin

__attribute__((visibility("default"))) const dtrain::data::UnicodeLibrary&
dtrain_unicode_library() {
  static const dtrain::unicode_plugin::Library library;
  return library;
}

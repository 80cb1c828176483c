#include "dtrain/data/tokenizer/piece_cuts.h"

#include <algorithm>

#include "dtrain/base/error.h"

namespace dtrain::data {
namespace {

constexpr std::string_view kSample =
    "The quick brown fox,  3 times:\njumps over (the)   lazy dogs. E.g. 2024-01-02;\nit's a "
    "\"word\" "
    "and another_one @ home\nend";

bool is_visible(char byte) { return byte > ' ' && byte < '\x7f'; }

std::vector<int> encode(const PieceModel& model, std::string_view text) {
  std::vector<int> ids;
  std::string obstacle;
  if (!model.encode(text, ids, obstacle)) {
    base::fail(base::ErrorKind::internal, "SentencePiece: {}", obstacle);
  }
  return ids;
}

std::vector<int> joined(std::vector<int> first, const std::vector<int>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// Whether a space stands behind another character.
bool holds_space_within(std::string_view piece) {
  while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
  return piece.find(kSpaceMark) != piece.npos || piece.find(' ') != piece.npos;
}

bool holds_newline_within(std::string_view piece) {
  return piece.find('\n') != piece.npos && piece.find_first_not_of('\n') != piece.npos;
}

template <typename Condition>
bool any_piece(const PieceModel& model, Condition condition) {
  for (int id = 0; id < model.size(); ++id) {
    if (model.kind(id) == PieceModel::Kind::normal && condition(model.piece(id))) return true;
  }
  return false;
}

bool has_unknown(const PieceModel& model, const std::vector<int>& ids) {
  return std::ranges::any_of(ids,
                             [&](int id) { return model.kind(id) == PieceModel::Kind::unknown; });
}

/// A space by itself, so that unknown characters before and after it never become one token.
bool knows_space(const PieceModel& model) {
  return any_piece(model, [](std::string_view piece) { return piece == kSpaceMark; });
}

}  // namespace

PieceCuts::PieceCuts(const PieceModels& models) {
  const PieceModel& own = *models.own;
  cuts_at_spaces_ = knows_space(own) && !any_piece(own, holds_space_within);
  if (!cuts_at_spaces_) return;
  joins_spaces_ = encode(own, "a  b") == encode(own, "a b");
  const std::vector<int> alone = encode(*models.bare, "\n");
  if (encode(own, "a\nb") == encode(own, "a b")) {
    newline_ = Newline::is_space;
  } else if (!alone.empty() && !has_unknown(own, alone) && !any_piece(own, holds_newline_within) &&
             encode(own, "a\nb") ==
                 joined(joined(encode(own, "a"), alone), encode(*models.bare, "b"))) {
    newline_ = Newline::stands_alone;
  }
  if (!confirms(models)) {
    cuts_at_spaces_ = false;
    newline_ = Newline::no_cut;
  }
}

bool PieceCuts::may_cut(std::string_view text, std::size_t at) const {
  const char before = text[at - 1];
  const char here = text[at];
  if (is_space(here)) {
    if (!cuts_at_spaces_ || !is_visible(before)) return false;
    std::size_t end = at + 1;
    while (end < text.size() && is_space(text[end])) ++end;
    return end < text.size() && is_visible(text[end]);
  }
  return newline_ == Newline::stands_alone &&
         ((here == '\n' && is_visible(before)) || (before == '\n' && is_visible(here)));
}

bool PieceCuts::confirms(const PieceModels& models) const {
  std::vector<int> in_parts;
  std::size_t begin = 0;
  for (std::size_t at = 1; at <= kSample.size(); ++at) {
    if (at < kSample.size() && !may_cut(kSample, at)) continue;
    in_parts = joined(std::move(in_parts),
                      encode_part(models, *this, kSample.substr(begin, at - begin), begin == 0));
    begin = at;
  }
  return in_parts == encode(*models.own, kSample);
}

std::vector<int> encode_part(const PieceModels& models, const PieceCuts& cuts,
                             std::string_view part, bool begins_document) {
  if (begins_document) return encode(*models.own, part);
  std::size_t spaces = 0;
  while (spaces < part.size() && cuts.is_space(part[spaces])) ++spaces;
  const bool is_word = 0 < spaces && spaces < part.size() && is_visible(part[spaces]);
  if (!is_word || !cuts.joins_spaces()) return encode(*models.bare, part);
  return encode(*models.spaced, part.substr(spaces));
}

}  // namespace dtrain::data

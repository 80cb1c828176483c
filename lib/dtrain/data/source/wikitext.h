// The raw files of WikiText: articles whose first line is " = Title = ".
#pragma once

#include <cstddef>
#include <string_view>

namespace dtrain::data {

/// Whether an article's title stands at `at`: a line " = Title = " that is neither a section's
/// (" = = Section = = ") nor follows text, between lines that are empty or the file's ends.
[[nodiscard]] bool begins_article(std::string_view text, std::size_t at);

/// Where the next article after text's first byte begins; text.size(): nowhere. Blank lines at
/// text's beginning belong to the article after them.
[[nodiscard]] std::size_t next_article(std::string_view text);

/// Where the last article of `text` begins, all of whose title's surroundings are there; 0: only at
/// the beginning, behind blank lines, or nowhere.
[[nodiscard]] std::size_t last_article(std::string_view text);

/// Words as the literature of WikiText counts them: what stands between spaces, and a sign for the
/// end of each line.
[[nodiscard]] std::size_t count_words(std::string_view text);

}  // namespace dtrain::data

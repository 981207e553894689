// Words of texts, as metrics and verifiers count them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace colossal::text {

/// Returns the text without white space at both ends.
std::string stripped(std::string_view text);
/// Returns the text in lower case, character by character.
std::string lowered(std::string_view text);
/// Returns the number of code points.
int64_t characters_of(std::string_view text);
/// Returns the number of parts between runs of white space. White space at an end makes an empty part, which counts.
int64_t parts_of(std::string_view text);

/// Returns SQuAD's words: in lower case, without punctuation and without the articles a, an and the. Each Chinese
/// character is a word.
std::vector<std::string> answer_words(std::string_view text);
/// Returns ROUGE's words: runs of letters, marks and numbers in lower case. Each Chinese character is a word.
std::vector<std::string> rouge_words(std::string_view text);

}  // namespace colossal::text

#include "colossal/text/verifiers/words.h"

#include <functional>

#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

/// How a character belongs to words.
enum class Role { Part, Alone, Left, Border };  // Left: it is left out, and the word continues after it

/// Calls `use` with each character and its bytes.
void for_code_points(std::string_view text, const std::function<void(uint32_t, std::string_view)>& use) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    use(c.value, text.substr(at, c.length));
    at += c.length;
  }
}

std::vector<std::string> words_of(std::string_view text, const std::function<Role(uint32_t)>& role_of) {
  std::vector<std::string> words;
  bool goes_on = false;
  for_code_points(text, [&](uint32_t c, std::string_view) {
    const Role role = is_chinese(c) ? Role::Alone : role_of(c);
    if (role == Role::Left) return;
    const bool is_new = role == Role::Alone || (role == Role::Part && !goes_on);
    if (is_new) words.emplace_back();
    if (role != Role::Border) append_lower(words.back(), c);
    goes_on = role == Role::Part;
  });
  return words;
}

}  // namespace

std::string stripped(std::string_view text) {
  text = text.substr(0, size_without_space(text));
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    if (!is_space(c.value)) break;
    text.remove_prefix(c.length);
  }
  return std::string(text);
}

std::string lowered(std::string_view text) {
  std::string lower;
  for_code_points(text, [&](uint32_t c, std::string_view) { append_lower(lower, c); });
  return lower;
}

int64_t characters_of(std::string_view text) {
  int64_t count = 0;
  for_code_points(text, [&](uint32_t, std::string_view) { ++count; });
  return count;
}

int64_t parts_of(std::string_view text) {
  int64_t parts = 1;
  bool was_border = false;
  for_code_points(text, [&](uint32_t c, std::string_view) {
    const bool is_border = is_space(c);
    parts += is_border && !was_border;
    was_border = is_border;
  });
  return parts;
}

std::vector<std::string> answer_words(std::string_view text) {
  std::vector<std::string> words = words_of(text, [](uint32_t c) {
    return is_space(c) ? Role::Border : is_punctuation(c) ? Role::Left : Role::Part;
  });
  std::erase_if(words, [](const std::string& word) { return word == "a" || word == "an" || word == "the"; });
  return words;
}

std::vector<std::string> rouge_words(std::string_view text) {
  return words_of(text,
                  [](uint32_t c) { return is_letter(c) || is_number(c) || is_mark(c) ? Role::Part : Role::Border; });
}

}  // namespace colossal::text

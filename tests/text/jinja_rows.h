// Rows of an expression and its output, for tests of the template language.
//
//   expect_rows({{"1 + 2", "3"}, {"s|upper", "HELLO WORLD"}});
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/text/chat_template.h"

namespace colossal::text::jinja_rows {

struct Row {
  const char *expression, *expected;
};

inline constexpr const char* kVariables = R"({
  "a": 1, "f": 2.5, "s": "Hello World", "u": "Gr\u00fc\u00dfe, \u6771\u4eac \ud83d\udc69\u200d\ud83d\ude80\u00df",
  "l": [3, 1, 2], "d": {"b": 1, "a": [1, 2], "items": 5, "x y": null}, "n": null, "t": true,
  "ms": [{"role": "user", "content": "Hi", "k": 2}, {"role": "assistant", "content": "Yo", "k": 1},
         {"role": "User", "content": "", "k": 2}],
  "e": [], "z": {}, "big": 9007199254740993, "tiny": 1e-7, "html": "<b>&\"'</b>",
  "nested": [[1, [2]], {"q": {"r": [1.0, true, null, "x"]}}]})";

/// Returns the output of an expression, or its error with Python's name for it.
inline std::string shown(const std::string& expression, const nlohmann::ordered_json& variables) {
  try {
    return ChatTemplate("{{ " + expression + " }}", "template", variables).render({}).text;
  } catch (const TemplateError& error) {
    return error.kind() + ": " + error.reason();
  }
}

inline void expect_rows(const std::vector<Row>& rows) {
  const nlohmann::ordered_json variables = nlohmann::ordered_json::parse(kVariables);
  for (const Row& row : rows) EXPECT_EQ(shown(row.expression, variables), row.expected) << row.expression;
}

}  // namespace colossal::text::jinja_rows

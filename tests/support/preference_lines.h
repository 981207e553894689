// Lines of preferences, and the flags of runs over them.
//
//   test::write_preferences(folder);
//   test::tiny_config("examples/sft.toml", test::preference_flags(folder, "kto"));
#pragma once
#include <string>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"

namespace colossal::test {

/// Writes 40 pairs to pairs.jsonl, 40 rated answers to rated.jsonl, and 40 rankings of two to four answers, some of
/// them pairs with margins, to ranked.jsonl. Their texts have 6 to 32 bytes.
inline void write_preferences(const std::string& folder) {
  std::string pairs, rated, ranked;
  for (int i = 0; i < 40; ++i) {
    const std::string prompt = concat(R"({"prompt": "Add )", i * 37 % 101, ": \"");
    pairs += concat(prompt, R"(, "chosen": "It is )", i % 3 == 0 ? "so " : "", i, R"(.", "rejected": ")",
                    i % 4 == 1 ? "I do not know" : "no", "\"}\n");
    rated += concat(prompt, R"(, "completion": "It is )", i % 5 == 0 ? "so " : "", i, R"(.", "label": )",
                    i % 3 == 0 ? "false" : "true", "}\n");
    if (i % 3 == 0)
      ranked += concat(prompt, R"(, "chosen": "It is )", i, R"(.", "rejected": "no", "margin": 0.)", i % 7, "}\n");
    else
      ranked += concat(prompt, R"(, "answers": ["It is )", i, R"(.", "no")", i % 3 == 1 ? R"(, "what?", "I know")" : "",
                       "]}\n");
  }
  write_file(folder + "/pairs.jsonl", pairs);
  write_file(folder + "/rated.jsonl", rated);
  write_file(folder + "/ranked.jsonl", ranked);
}

/// Returns the flags with which a run over the lines of write_preferences() follows `method`.
inline std::vector<std::string> preference_flags(const std::string& folder, const std::string& method) {
  const char* lines = method == "kto" ? "/rated.jsonl" : method == "reward" ? "/ranked.jsonl" : "/pairs.jsonl";
  std::vector<std::string> flags{"--alignment.method=" + method, "--data.path=" + folder + lines,
                                 "--data.chat_template=", "--data.sequence=32"};
  if (method == "reward") flags.insert(flags.end(), {"--alignment.answers=4", "--alignment.centre=0.1"});
  return flags;
}

}  // namespace colossal::test

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

/// Writes 40 pairs to pairs.jsonl and 40 rated answers to rated.jsonl. Their texts have 6 to 32 bytes.
inline void write_preferences(const std::string& folder) {
  std::string pairs, rated;
  for (int i = 0; i < 40; ++i) {
    const std::string prompt = concat(R"({"prompt": "Add )", i * 37 % 101, ": \"");
    pairs += concat(prompt, R"(, "chosen": "It is )", i % 3 == 0 ? "so " : "", i, R"(.", "rejected": ")",
                    i % 4 == 1 ? "I do not know" : "no", "\"}\n");
    rated += concat(prompt, R"(, "completion": "It is )", i % 5 == 0 ? "so " : "", i, R"(.", "label": )",
                    i % 3 == 0 ? "false" : "true", "}\n");
  }
  write_file(folder + "/pairs.jsonl", pairs);
  write_file(folder + "/rated.jsonl", rated);
}

/// Returns the flags with which a run over the lines of write_preferences() follows `method`.
inline std::vector<std::string> preference_flags(const std::string& folder, const std::string& method) {
  return {"--alignment.method=" + method, "--data.path=" + folder + (method == "kto" ? "/rated.jsonl" : "/pairs.jsonl"),
          "--data.chat_template=", "--data.sequence=32"};
}

}  // namespace colossal::test

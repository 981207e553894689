// A tokenizer of bytes with the special tokens of ChatML, and ChatML's template with and without generation blocks.
#pragma once
#include <memory>
#include <string>

#include "colossal/base/json.h"
#include "colossal/text/tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::data::made {

constexpr int64_t kDocumentEnd = 256, kTurnBegin = 257, kTurnEnd = 258;

constexpr char kChatMl[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
constexpr char kChatMlBlocks[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Returns the tokenizer: bytes are their own ids, and 256 ends a document.
inline std::shared_ptr<const text::Tokenizer> chat_tokenizer() {
  text::TokenizerFiles files = text::files_of_bytes();
  for (const auto& [id, name] : {std::pair{kTurnBegin, "<|im_start|>"}, std::pair{kTurnEnd, "<|im_end|>"}})
    files.tokenizer["added_tokens"].push_back(
        {{"id", id}, {"content", name}, {"special", true}, {"normalized", false}});
  return text::make_hugging_face_tokenizer(files.tokenizer, files.config, "ChatML");
}

}  // namespace colossal::data::made

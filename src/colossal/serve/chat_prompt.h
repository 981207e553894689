// The prompt of a request, and the room for its answer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/infer/generation_options.h"
#include "colossal/serve/request_reader.h"
#include "colossal/text/chat_template.h"

namespace colossal::serve {

/// Returns the text of a chat, which ends where the assistant's answer begins. It has special tokens: encode it with
/// Tokenizer::encode(). If the chat has no system message, `system` becomes one; "" = none. The role "developer"
/// becomes "system" unless the template mentions "developer".
/// Errors: http::RequestError 400: `chat_template` is null; the template refuses the messages, does not render the
///         tools, or does not read a variable of the request.
std::string chat_prompt(const ChatRequest& request, const text::ChatTemplate* chat_template,
                        const std::string& system = "");

/// Cuts options.max_tokens to what fits after a prompt. `max_length` is the maximum number of tokens of a sequence
/// that positions and cache allow; the last token of an answer needs none of them. With attention_sinks only
/// kAsManyAsFit is cut. `even_length` (0 = none) is the length up to which the model computes a text in one way
/// (models::LongTexts::even_positions): kAsManyAsFit ends there, unless the prompt is longer.
/// Errors: http::RequestError 400 "context_length_exceeded" if the prompt does not fit; `param` is that of the error.
void fit_to_room(infer::GenerationOptions& options, int64_t prompt_tokens, int64_t max_length, const std::string& param,
                 int64_t even_length = 0);

}  // namespace colossal::serve

#include "colossal/run/objectives/alignment/pretraining_data.h"

#include <utility>

#include "colossal/run/objectives/alignment/chat_data.h"

namespace colossal::run {

std::unique_ptr<data::BatchReader> open_pretraining(const DataRequest& request, const ChatKeys& keys) {
  Config config = request.config;
  config.data.path = keys.pretraining;
  config.data.held_out = 0;
  ChatKeys own = keys;
  own.stream.sources.clear();
  own.stream.weights.clear();
  OpenedData data = open_chats({config, request.shape, request.tokenizer, request.builtin, request.replica}, own,
                               data::ChatSamples::Answers);
  return std::move(data.stream);
}

}  // namespace colossal::run

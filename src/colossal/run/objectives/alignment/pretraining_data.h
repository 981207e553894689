// Opens the text of data.pretraining, whose loss PPO-ptx adds (2203.02155).
//
//   std::unique_ptr<data::BatchReader> texts = open_pretraining({config, shape, tokenizer}, keys);
//   engine.train_step(texts->next({}), ...);              // as many rows as an update has answers
#pragma once
#include <memory>

#include "colossal/data/batches.h"
#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Opens the records of data.pretraining as packed rows of data.sequence tokens, training.batch_size rows in a batch of
/// all replicas. All tokens of plain texts count; of chats the answers do. Errors ("data"): those of open_chats().
std::unique_ptr<data::BatchReader> open_pretraining(const DataRequest& request, const ChatKeys& keys);

}  // namespace colossal::run

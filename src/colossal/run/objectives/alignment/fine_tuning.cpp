// Supervised fine-tuning.
#include <ATen/ATen.h>

#include "colossal/nn/embedding_noise.h"
#include "colossal/run/objectives/alignment/chat_data.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/methods.h"
#include "colossal/run/objectives/head_objective.h"

namespace colossal::run {
namespace {

using tensor::Dim;

/// Returns the noise of each token: alpha / sqrt(tokens of its document). documents [B, S] on the host.
at::Tensor noise_of(const at::Tensor& documents, double alpha) {
  const int64_t rows = documents.size(0), tokens = documents.size(1);
  const at::Tensor in_batch = documents + at::arange(rows, at::kLong).unsqueeze(1) * tokens;  // documents of all rows
  const at::Tensor counts = at::bincount(in_batch.flatten(), {}, rows * tokens);
  return counts.index({in_batch}).to(at::kDouble).rsqrt().mul(alpha).to(at::kFloat);
}

/// Batches with noise on their embeddings.
class NoisyBatches final : public data::BatchReader {
 public:
  NoisyBatches(std::unique_ptr<BatchReader> texts, double alpha) : texts_(std::move(texts)), alpha_(alpha) {}
  tensor::Batch next(const std::vector<tensor::TokenRun>& wanted) override {
    tensor::Batch batch = texts_->next(wanted);
    batch.add(nn::kEmbeddingNoise, {noise_of(batch.at("documents"), alpha_), {Dim::Row, Dim::Token}});
    return batch;
  }
  nlohmann::json position() const override { return texts_->position(); }
  void seek(const nlohmann::json& position) override { texts_->seek(position); }
  nlohmann::json traits() const override { return texts_->traits(); }
  int64_t samples() const override { return texts_->samples(); }
  std::vector<std::string> take_notices() override { return texts_->take_notices(); }

 private:
  std::unique_ptr<BatchReader> texts_;
  double alpha_;
};

class FineTuning final : public HeadObjective {
 public:
  FineTuning(const Config& config, const models::ModelShape& shape, AlignmentKeys keys, ChatKeys chats)
      : HeadObjective(config, shape), keys_(std::move(keys)), chats_(std::move(chats)) {
    check_head(shape.task().continues(), "alignment", "continues text", shape);
    check_chat_keys(config, chats_);
  }

  OpenedData open(const DataRequest& request) const override {
    OpenedData data = open_chats(request, chats_, data::ChatSamples::Answers);
    if (keys_.noise > 0) data.stream = std::make_unique<NoisyBatches>(std::move(data.stream), keys_.noise);
    return data;
  }
  tensor::Batch example(int64_t rows) const override {
    tensor::Batch batch = HeadObjective::example(rows);
    if (keys_.noise > 0)
      batch.add(nn::kEmbeddingNoise,
                {at::empty(batch.at("ids").sizes(), at::TensorOptions(at::kFloat).device(at::kMeta)),
                 {Dim::Row, Dim::Token}});
    return batch;
  }
  /// Counts the tokens without padding.
  int64_t tokens(const tensor::Batch& batch, const models::ModelShape& shape) const override {
    const at::Tensor lengths = batch.find("lengths");
    return lengths.defined() ? lengths.sum().item<int64_t>() : HeadObjective::tokens(batch, shape);
  }

 private:
  AlignmentKeys keys_;
  ChatKeys chats_;
};

}  // namespace

std::unique_ptr<Objective> make_fine_tuning(const Config& config, const OwnTables& tables,
                                            const models::ModelShape& shape) {
  return std::make_unique<FineTuning>(config, shape, tables.as<AlignmentKeys>("alignment"), tables.data<ChatKeys>());
}

}  // namespace colossal::run

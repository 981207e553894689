#include "colossal/models/window_keys.h"

#include <gmock/gmock.h>

#include "colossal/base/json.h"
#include "colossal/models/config.h"
#include "colossal/models/folder_config.h"
#include "colossal/models/registry.h"
#include "support/thrown_message.h"

namespace colossal::models::window_keys_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
constexpr const char *kSliding = "sliding_attention", *kFull = "full_attention";

std::vector<int64_t> windows(const WindowKeys& keys, WindowRule rule, int64_t layers) {
  std::vector<int64_t> all;
  for (int64_t i = 0; i < layers; ++i) all.push_back(with_windows({}, keys, rule)(i).attention.window);
  return all;
}

TEST(WindowKeys, SelectsWindowedLayers) {
  using testing::ElementsAre;
  EXPECT_THAT(windows({.window = 5}, every_layer, 3), ElementsAre(5, 5, 5));
  EXPECT_THAT(windows({.window = 5}, every_second_layer, 3), ElementsAre(5, 0, 5));
  EXPECT_THAT(windows({.window = 5, .layer_types = {kFull, kFull, kSliding}}, every_layer, 3), ElementsAre(0, 0, 5));
  EXPECT_THAT(windows({}, every_second_layer, 3), ElementsAre(0, 0, 0));
}

TEST(WindowKeys, ReadsAllFormsOfQwen) {
  const auto read = [](const json& config) {
    const FolderConfig folder(config, "Qwen2");
    FolderKeys k(folder);
    WindowKeys keys;
    qwen_window_keys(k, keys, 3);
    return keys;
  };
  const WindowKeys last{.window = 5, .layer_types = {kFull, kFull, kSliding}};
  EXPECT_EQ(read({{"sliding_window", 5}}), WindowKeys());
  EXPECT_EQ(read({{"sliding_window", 5}, {"use_sliding_window", true}}), WindowKeys()) << "of layers from 28 on";
  EXPECT_EQ(read({{"sliding_window", 5}, {"use_sliding_window", true}, {"max_window_layers", 2}}), last);
  EXPECT_EQ(read({{"sliding_window", 5}, {"use_sliding_window", true}, {"layer_types", {kFull, kFull, kSliding}}}),
            last);
  EXPECT_EQ(read({{"use_sliding_window", true}, {"max_window_layers", 0}}), WindowKeys{.window = 4096});
  EXPECT_EQ(read({{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}}), WindowKeys());
  EXPECT_THAT(test::thrown_message([&] { read({{"layer_types", {kFull, kFull, kSliding}}}); }),
              HasSubstr("layer_types of a Qwen2 without a window must all be full_attention"));
  EXPECT_THAT(test::thrown_message([&] { read({{"layer_types", {kFull}}}); }),
              HasSubstr("layer_types must be one for each of the layers: got 1 for 3 layers"));
  for (WindowKeys keys : {WindowKeys(), WindowKeys{.window = 7}, last}) {
    json written;
    FolderKeys k(written);
    qwen_window_keys(k, keys, 3);
    EXPECT_EQ(read(written), keys);
    written.erase("layer_types");  // the form that transformers wrote before it had layer_types
    EXPECT_EQ(read(written), keys);
  }
}

TEST(WindowKeys, RefusesTypesThatDoNotFitLayers) {
  const auto refusal = [](const char* types) {
    return test::thrown_message(
        [&] { built_in().resolve({.name = "qwen3-tiny", .layers = 2, .own = own_keys({"window=3", types})}); });
  };
  EXPECT_EQ(refusal(R"(layer_types=["full_attention","sliding_attention"])"), "");
  EXPECT_THAT(refusal(R"(layer_types=["full_attention","full_attention"])"),
              HasSubstr("must be set together: got a window of 3 and no such layer"));
  EXPECT_THAT(refusal(R"(layer_types=["full_attention"])"), HasSubstr("got 1 for 2 layers"));
  EXPECT_THAT(refusal(R"(layer_types=["full_attention","chunked_attention"])"),
              HasSubstr("must be sliding_attention or full_attention: got chunked_attention"));
}

}  // namespace
}  // namespace colossal::models::window_keys_test

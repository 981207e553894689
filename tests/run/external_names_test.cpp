// Names of a model's tensors in a folder, and parts of folders that a model leaves out.
#include "colossal/run/external_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "colossal/checkpoint/safetensors.h"
#include "colossal/models/config.h"
#include "colossal/models/registry.h"
#include "support/temporary_folder.h"

namespace colossal::run::external_names_test {
namespace {

TEST(ExternalNames, ReportsAPartThatIsLeftOut) {
  const models::ModelShape shape = models::built_in().resolve({.name = "deepseek-tiny"});  // 4 layers
  const test::TemporaryFolder folder;
  const auto notice = [&](const std::string& tensor) {
    checkpoint::write_safetensors(folder / "model.safetensors", {{tensor, at::zeros({2, 2})}});
    return notice_of_left_out(folder.path(), shape);
  };
  EXPECT_FALSE(notice("model.layers.3.mlp.gate.weight").has_value());
  EXPECT_THAT(notice("model.layers.4.eh_proj.weight").value_or(""),
              testing::HasSubstr("holds model.layers.4.eh_proj.weight, which is left out: it belongs to the "
                                 "multi-token layer"));
  EXPECT_FALSE(notice_of_left_out(folder.path(), models::built_in().resolve({.name = "llama-tiny"})).has_value());
  EXPECT_THAT(external_names(shape).ignored, testing::Contains("model.layers.4.*"));
}

}  // namespace
}  // namespace colossal::run::external_names_test

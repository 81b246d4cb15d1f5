// SPDX-License-Identifier: Apache-2.0
import { defineEvalConfig } from "eve/evals";

export default defineEvalConfig({});
